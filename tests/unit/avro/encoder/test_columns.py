"""What `to_avro` writes, against the recorded answers of Spark's own and against fastavro."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from connectors.avro.options import Rebase
from connectors.avro.worker import EncodeCall
from connectors.core.errors import ConnectorError
from tests.support.avro_rig import batches, decode, encode, plain
from tests.support.avro_writes import DIFFERENT, WRITES, WriteCase, column

GOLDEN = Path(__file__).parents[3] / "golden/avro/spark_writes.json"
ANSWERS = json.loads(GOLDEN.read_text(encoding="utf-8"))["answers"]
NULL_IN_JAVA = "AVRO_CANNOT_WRITE_NULL_FIELD|NullPointerException"


def hexes(messages: pa.BinaryArray) -> list[str | None]:
    messages.validate(full=True)
    return [None if row is None else row.hex() for row in messages.to_pylist()]


@pytest.mark.parametrize("case", WRITES, ids=[case[0] for case in WRITES])
def test_messages_are_those_of_spark(case: WriteCase) -> None:
    name, kind, nullable, values, schema = case
    call = EncodeCall(None if schema is None else json.dumps(schema))
    answer = ANSWERS[name]
    if "error" in answer and name in DIFFERENT:
        return  # test_a_union_may_be_the_whole_schema
    if "error" in answer:
        null = any(part in answer["error"] for part in NULL_IN_JAVA.split("|"))
        with pytest.raises(ConnectorError) as raised:
            call(column(kind, values, nullable=nullable))
        assert raised.value.code == ("AVRO_CANNOT_WRITE_NULL_FIELD" if null else "AVRO_SCHEMA_INCOMPATIBLE")
        return
    for repeat in (1, 7):
        structs = column(kind, values * repeat, nullable=nullable)
        for array in (structs, pa.concat_arrays([structs[:1], structs])[1:]):
            assert (hexes(call(array)) == answer["values"] * repeat) == (name not in DIFFERENT)


def test_maps_hold_what_those_of_spark_hold_in_their_own_order() -> None:
    name, kind, nullable, values, _ = next(case for case in WRITES if case[0] == "map of several entries")
    schema = {"type": "map", "values": ["int", "null"]}
    messages = EncodeCall()(column(kind, values, nullable=nullable))
    theirs = [bytes.fromhex(row) for row in ANSWERS[name]["values"]]
    ours = messages.to_pylist()
    assert [fastavro.schemaless_reader(io.BytesIO(row), schema, None) for row in ours] == values
    assert [fastavro.schemaless_reader(io.BytesIO(row), schema, None) for row in theirs] == values


def test_each_case_has_an_answer_and_each_difference_a_case() -> None:
    names = [case[0] for case in WRITES]
    assert sorted(ANSWERS) == sorted(names)
    assert len(set(names)) == len(names)
    assert DIFFERENT.keys() <= set(names)


def test_a_union_may_be_the_whole_schema() -> None:
    call = EncodeCall(json.dumps(["int", "string"]))
    kind = pa.struct([pa.field("member0", pa.int32()), pa.field("member1", pa.string())])
    rows = [{"member0": 1, "member1": None}, {"member0": None, "member1": "x"}]
    assert call(column(kind, rows)).to_pylist() == [encode(["int", "string"], value) for value in (1, "x")]
    with pytest.raises(ConnectorError, match="AVRO_CANNOT_WRITE_NULL_FIELD"):
        call(column(kind, [{"member0": None, "member1": None}]))


@given(batches())
def test_what_is_written_is_what_fastavro_writes(batch: tuple[Any, list[tuple[Any, Any]]]) -> None:
    schema, pairs = batch
    messages = [encode(schema, datum) for datum, _ in pairs]
    values = decode(messages, schema).values
    written = EncodeCall(json.dumps(schema))(pa.StructArray.from_arrays([values], ["value"])).to_pylist()
    assert [row is None for row in written] == [not each.is_valid for each in values]
    there = [place for place, row in enumerate(written) if row is not None]
    assert [len(written[place]) for place in there] == [len(messages[place]) for place in there]
    again, expected = (
        plain(decode([rows[place] for place in there], schema).values.to_pylist()) for rows in (written, messages)
    )
    assert repr(again) == repr(expected)
    if "map" not in json.dumps(schema):
        assert [written[place] for place in there] == [messages[place] for place in there]


def test_a_batch_of_no_row_has_no_message() -> None:
    for name, kind, nullable, _, schema in WRITES:
        if "error" not in ANSWERS[name]:
            call = EncodeCall(None if schema is None else json.dumps(schema))
            assert call(column(kind, [], nullable=nullable)).to_pylist() == []


@pytest.mark.parametrize(
    ("kind", "first"), [(pa.date32(), -141427), (pa.timestamp("us", tz="UTC"), -2_208_988_800_000_000)]
)
def test_dates_of_before_the_calendars_agree_are_refused_only_if_asked(kind: pa.DataType, first: int) -> None:
    strict = EncodeCall(None, Rebase.EXCEPTION)
    old, new = (column(kind, [first - 1, None]), column(kind, [first, None]))
    assert len(EncodeCall()(old)) == len(strict(new)) == 2
    with pytest.raises(ConnectorError, match="AVRO_DATE_TOO_OLD"):
        strict(old)


def test_names_match_by_case_only_if_asked() -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "A", "type": "int"}]})
    kind = pa.struct([pa.field("a", pa.int32())])
    structs = column(kind, [{"a": 1}])
    assert EncodeCall(schema)(structs).to_pylist() == [b"\x02"]
    with pytest.raises(ConnectorError, match=r"AVRO_SCHEMA_INCOMPATIBLE.*'a'"):
        EncodeCall(schema, case_sensitive=True)(structs)


@pytest.mark.parametrize("name", ["a b", "1x", "", "a-b"])
def test_a_column_whose_name_avro_cannot_have_is_named(name: str) -> None:
    with pytest.raises(ConnectorError, match=r"AVRO_SCHEMA_INCOMPATIBLE.*name"):
        EncodeCall()(column(pa.struct([pa.field(name, pa.int32())]), [{name: 1}]))


def test_a_column_of_a_type_that_avro_has_not_is_named() -> None:
    with pytest.raises(ConnectorError, match=r"AVRO_TYPE_NOT_SUPPORTED.*halffloat"):
        EncodeCall()(column(pa.float16(), [np.float16(1)]))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary(), pa.large_list(pa.int32())])
def test_large_types_are_written_as_the_others(kind: pa.DataType) -> None:
    values = [[1, 2], None] if pa.types.is_large_list(kind) else [b"a", None]
    smaller = {"large_string": pa.string(), "large_binary": pa.binary()}.get(str(kind), pa.list_(pa.int32()))
    assert hexes(EncodeCall()(column(kind, values))) == hexes(EncodeCall()(column(smaller, values)))


def test_a_field_without_a_column_may_have_null_at_any_place_of_its_union() -> None:
    fixed = [{"type": "fixed", "name": f"F{number}", "size": 1} for number in range(150)]
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": [*fixed, "null"]}]}
    assert EncodeCall(json.dumps(schema))(column(pa.struct([]), [{}])).to_pylist() == [encode(schema, {"f": None})]


@pytest.mark.parametrize("key", ["variant", "geometry", "geography"])
def test_what_is_no_struct_in_spark_is_refused(key: str) -> None:
    parts = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={key: "true"})]
    for kind in (pa.struct(parts), pa.list_(pa.struct(parts))):
        with pytest.raises(ConnectorError, match=f"AVRO_TYPE_NOT_SUPPORTED.*{key}"):
            EncodeCall()(column(kind, [None]))


def test_times_of_the_day_are_written_as_microseconds() -> None:
    times = column(pa.time64("ns"), [1_000_004_999, None])
    assert EncodeCall()(times).to_pylist() == [b"\0" + encode("long", 1_000_004), None]
    with pytest.raises(ConnectorError, match="AVRO_SCHEMA_INCOMPATIBLE"):
        EncodeCall('"long"')(times)


@pytest.mark.parametrize("name", ["time-micros", "timestamp-nanos", "local-timestamp-nanos"])
def test_timestamps_are_not_written_as_what_they_are_not(name: str) -> None:
    schema = json.dumps({"type": "long", "logicalType": name})
    for kind in (pa.timestamp("us", tz="UTC"), pa.timestamp("us")):
        with pytest.raises(ConnectorError, match="AVRO_SCHEMA_INCOMPATIBLE"):
            EncodeCall(schema)(column(kind, [0]))
    assert EncodeCall(schema)(column(pa.int64(), [1])).to_pylist() == [b"\x02"]
