"""Rows that Kinesis cannot take are refused by name, before one of their request is sent."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors.core.errors import ConnectorError
from connectors.testing.kinesis import KinesisServer
from tests.support.kinesis_sink import Row, batch, write

MIB = 1 << 20


class TestBadRows:
    @pytest.mark.parametrize(
        ("row", "shown"),
        [
            (("k" * 257, b"x"), "partitionKey of 257 characters"),
            (("", b"x"), "no partitionKey"),
            ((None, b"x"), "no partitionKey"),
            (("culprit", None), "'culprit'"),
            (("culprit", b"x" * (MIB - 6)), "'culprit'"),
        ],
        ids=["long key", "empty key", "no key", "no data", "above 1 MiB"],
    )
    def test_30_bad_row_fails_with_its_key(self, server: KinesisServer, row: Row, shown: str) -> None:
        with pytest.raises(ConnectorError, match="KINESIS_BAD_ROW") as raised:
            write(server, batch([("good", b"1"), row]))
        assert shown in str(raised.value)

    @pytest.mark.parametrize("hash_key", ["-1", "01", "x", str(1 << 128)])
    def test_bad_hash_key_fails_with_its_key(self, server: KinesisServer, hash_key: str) -> None:
        rows = batch([("culprit", b"1")], explicitHashKey=[hash_key])
        with pytest.raises(ConnectorError, match="'culprit'"):
            write(server, rows, columns=("explicitHashKey",))

    @pytest.mark.parametrize("stream", [None, "no/name"])
    def test_row_without_stream_fails_with_its_key(self, server: KinesisServer, stream: str | None) -> None:
        rows = batch([("culprit", b"1")], stream=pa.array([stream], pa.string()).to_pylist())
        rows = rows.set_column(2, "stream", pa.array([stream], pa.string()))
        with pytest.raises(ConnectorError, match="'culprit'"):
            write(server, rows, columns=("stream",), streamName=None)

    @pytest.mark.parametrize("column", ["partitionKey", "stream", "explicitHashKey"])
    def test_text_that_is_not_utf_8_fails_with_its_row(self, server: KinesisServer, column: str) -> None:
        keys = pa.array(["12", "13"])
        texts = {"partitionKey": keys, "stream": pa.array(["orders"] * 2), "explicitHashKey": keys}
        texts[column] = pa.array([b"12", b"k\xff"], pa.binary()).view(pa.string())
        rows = pa.RecordBatch.from_pydict(texts | {"data": pa.array([b"1", b"\xff"])})
        before = pa.RecordBatch.from_pydict({**dict.fromkeys(texts, keys), "stream": ["orders"] * 2, "data": [b""] * 2})
        with pytest.raises(ConnectorError, match=f"Row 3 of its partition has a {column} that is not UTF-8") as raised:
            write(server, before, rows, columns=("stream", "explicitHashKey"), streamName=None)
        assert raised.value.code == "KINESIS_BAD_ROW"
        assert repr("k\\xff" if column == "partitionKey" else "13") in str(raised.value)
        # A column that is not read may hold what it likes.
        if column != "partitionKey":
            assert write(server, rows, columns=()) == 2

    def test_largest_record_is_written(self, server: KinesisServer) -> None:
        assert write(server, batch([("12345678", b"x" * (MIB - 8))])) == 1
