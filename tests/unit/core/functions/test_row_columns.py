"""What rows say of their values and ``typeof`` of their types, as Arrow has it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import Row

from connectors.core.errors import ConnectorError
from connectors.core.functions.row_columns import reading

MICROS = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("struct<>", pa.struct([])),
        ("struct<n:int>", pa.struct([("n", pa.int32())])),
        ("array<map<string,array<bigint>>>", pa.list_(pa.map_(pa.string(), pa.list_(pa.int64())))),
        (
            "struct<a b:decimal(20,0),c:map<int,struct<x:decimal(3,1),y:void>>,d:date>",
            pa.struct(
                [
                    ("a b", pa.decimal128(20, 0)),
                    ("c", pa.map_(pa.int32(), pa.struct([("x", pa.decimal128(3, 1)), ("y", pa.null())]))),
                    ("d", pa.date32()),
                ]
            ),
        ),
        ("array<interval day to second>", pa.list_(pa.duration("us"))),
        ("interval hour", pa.duration("us")),
        ("varchar(3)", pa.string()),
        ("string collate UNICODE_CI", pa.string()),
        ("timestamp", MICROS),
        ("timestamp_ntz", pa.timestamp("us")),
    ],
)
def test_a_type_is_read_from_its_name(name: str, kind: pa.DataType) -> None:
    assert reading(name)[0] == kind


@pytest.mark.parametrize("name", ["interval year", "interval", "variant", "struct<a:variant>", "struct<c:d:binary>"])
def test_a_type_that_arrow_does_not_have_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConnectorError, match=r"SPARK_FEATURE_MISSING.*a column of the type"):
        reading(name)


def test_values_of_a_row_are_those_of_its_type() -> None:
    kind, convert = reading(
        "struct<n:bigint,d:decimal(20,0),list:array<struct<raw:binary,f:double>>,"
        "map:map<string,struct<s:string>>,i:interval day>"
    )
    assert convert is not None
    row = Row(
        n=2**53 + 1,
        d=Decimal(2**64 - 1),
        list=[Row(raw=bytearray(b"\xff"), f=None), None],
        map={"a": Row(s="x"), "b": None},
        i=timedelta(days=-3, microseconds=1),
    )
    [read] = pa.array([convert(row)], kind).to_pylist(maps_as_pydicts="strict")
    assert read == {
        "n": 2**53 + 1,
        "d": Decimal(2**64 - 1),
        "list": [{"raw": b"\xff", "f": None}, None],
        "map": {"a": {"s": "x"}, "b": None},
        "i": timedelta(days=-3, microseconds=1),
    }


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone in which clocks go back an hour."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
def test_a_time_is_the_same_in_the_hour_that_comes_twice() -> None:
    kind, convert = reading("struct<at:array<timestamp>>")
    assert convert is not None
    end = 1_730_613_600  # of summer time in 2024, and an hour before it
    instants = [end - 3600, end, end + 3599, -1, 253_402_214_400]
    row = Row(at=[datetime.fromtimestamp(instant).replace(microsecond=5) for instant in instants])  # noqa: DTZ006 - as PySpark
    found = pa.array([convert(row)], kind).field("at").values.cast(pa.int64()).to_pylist()
    assert found == [instant * 1_000_000 + 5 for instant in instants]
