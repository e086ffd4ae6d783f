"""A share of ``./dev chaos avro``; and what is wrong in a codec, in either direction, is seen by its trial."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from connectors.avro.errors import AvroDataError
from tests.chaos.rigs.avro_trial import Codec, run_trial
from tests.support.clients import find_java_client

pytestmark = pytest.mark.may_skip_in_ci("Maven may not serve Java's Avro")
SEED, ROWS = 7, 250


@pytest.fixture(autouse=True, scope="module")
def _java() -> None:
    if reason := find_java_client("avro").reason:
        pytest.skip(reason)


class Altered(Codec):
    """Our functions, whose results are altered."""

    def __init__(
        self,
        *,
        read: Callable[[pa.Array], pa.Array] = lambda array: array,
        written: Callable[[pa.Array], pa.Array] = lambda array: array,
    ) -> None:
        self._read, self._written = read, written

    def decode(self, writer: str, messages: pa.Array, reader: str | None = None, **options: str) -> pa.Array:
        return self._read(super().decode(writer, messages, reader, **options))

    def encode(self, schema: str, column: pa.Array) -> pa.Array:
        return self._written(super().encode(schema, column))


class Lenient(Codec):
    """Our functions, but FAILFAST reads bad rows as PERMISSIVE does."""

    def decode(self, writer: str, messages: pa.Array, reader: str | None = None, **options: str) -> pa.Array:
        return super().decode(writer, messages, reader, **{"mode": "PERMISSIVE", **options})


class Unnamed(Codec):
    """Our functions, but the error of FAILFAST names another row."""

    def decode(self, writer: str, messages: pa.Array, reader: str | None = None, **options: str) -> pa.Array:
        try:
            return super().decode(writer, messages, reader, **options)
        except AvroDataError as error:
            raise AvroDataError(error.code, error.what, "row 1000000 of the batch", error.action) from error


class Silent(Codec):
    """Our functions, but no error is in the column for it."""

    def decode(self, writer: str, messages: pa.Array, reader: str | None = None, **options: str) -> pa.Array:
        found = super().decode(writer, messages, reader, **options)
        if options.get("on.error") != "column":
            return found
        return pa.StructArray.from_arrays([found.field("value"), pa.nulls(len(found), pa.string())], ["value", "error"])


def shifted(array: pa.Array) -> pa.Array:
    """Return rows that are one place late."""
    return array.take(pa.array([max(0, row - 1) for row in range(len(array))]))


def one_null(array: pa.Array) -> pa.Array:
    """Return rows of which one in the middle is NULL."""
    return array.take(pa.array([None if row == len(array) // 2 else row for row in range(len(array))], pa.int32()))


def with_a_byte(messages: pa.Array) -> pa.Array:
    """Return messages of which the last one begins with another byte."""
    last = messages[-1].as_py()
    return pa.concat_arrays([messages[:-1], pa.array([bytes([last[0] ^ 2]) + last[1:]], messages.type)])


def test_a_trial_of_ours_is_right_and_sees_all_planted_faults() -> None:
    outcome = run_trial(SEED, ROWS)
    assert outcome["ok"], outcome["faults"]
    counts = outcome["counts"]
    assert counts["rows"] == ROWS
    assert counts["planted_seen"] == counts["planted"] > 3 * counts["schemas"]
    assert counts["compared"] > 4 * ROWS
    assert min(counts[name] for name in ("damaged", "bad_rows", "resolved", "failfast")) > 0


@pytest.mark.parametrize(
    ("codec", "what"),
    [
        (Altered(read=shifted), ", read, row"),
        (Altered(read=one_null), ", read, row"),
        (Altered(read=lambda array: array[:-1]), ", read, row"),
        (Altered(written=shifted), "written, read by Java, row"),
        (Altered(written=with_a_byte), "written, read by"),
        (Lenient(), "FAILFAST reads"),
        (Unnamed(), "FAILFAST names"),
        (Silent(), "have an error"),
    ],
    ids=["shifted", "null", "short", "written-shifted", "written-byte", "lenient", "unnamed", "silent"],
)
def test_what_is_wrong_in_a_codec_is_a_fault(codec: Codec, what: str) -> None:
    outcome = run_trial(SEED, ROWS, codec)
    assert not outcome["ok"]
    assert any(what in fault for fault in outcome["faults"]), outcome["faults"]
