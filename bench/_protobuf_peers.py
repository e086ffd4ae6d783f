"""What people who have only pip write to decode and encode protobuf in Spark: the other sides of bench/protobuf.py.

Each function is the body of an Arrow UDF. They give the same columns as `from_protobuf` does for bench.Event, and they
are written with care: classes are made once a worker, and nothing is done twice.

- ``decode-upb``: ParseFromString and MessageToDict, then pa.array over the dictionaries. What one finds on the web.
- ``decode-tuned``: ParseFromString, and a list for each field that is made into a column of its own.
- ``decode-protarrow`` and ``encode-protarrow``: the library protarrow, which does the same for any message.
- ``encode-upb``: to_pylist, and one attribute after the other set.
"""

from __future__ import annotations

from base64 import b64decode
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import protarrow
import pyarrow as pa
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.json_format import MessageToDict

DESCRIPTORS = "CONNECTORS_BENCH_DESCRIPTORS"  # names the file for the workers

PLACE = pa.struct([("city", pa.string()), ("latitude", pa.float64()), ("longitude", pa.float64())])
ITEM = pa.struct([("sku", pa.string()), ("quantity", pa.int32()), ("price", pa.float64())])
EVENT = pa.struct(
    [
        ("id", pa.string()),
        ("user_id", pa.int64()),
        ("shard", pa.int32()),
        ("active", pa.bool_()),
        ("score", pa.float64()),
        ("ratio", pa.float32()),
        ("token", pa.binary()),
        ("level", pa.string()),
        ("place", PLACE),
        ("items", pa.list_(pa.field("element", ITEM, nullable=False))),
        ("tags", pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))),
        ("created", pa.timestamp("us", "UTC")),
        ("retries", pa.int32()),
        ("codes", pa.list_(pa.field("element", pa.int32(), nullable=False))),
        ("note", pa.string()),
    ]
)


_CLASSES: dict[str, Any] = {}


@cache
def event_class(path: str) -> Any:
    """The class of bench.Event, as a generated module has it: protarrow knows Timestamp by its own class only."""
    pool = descriptor_pool.Default()
    assert timestamp_pb2.DESCRIPTOR.name
    for file in FileDescriptorSet.FromString(Path(path).read_bytes()).file:
        if not file.name.startswith("google/"):
            pool.Add(file)
    # Kept, because protobuf itself only holds the classes of nested messages while someone does.
    _CLASSES.update(message_factory.GetMessageClassesForFiles(["event.proto"], pool))
    return _CLASSES["bench.Event"]


def decode_upb(messages: pa.Array, path: str) -> pa.Array:
    """ParseFromString and MessageToDict."""
    kind = event_class(path)
    rows = []
    for data in messages.to_pylist():
        message = kind()
        message.ParseFromString(data)
        row = MessageToDict(message, preserving_proto_field_name=True)
        # JSON has no 64-bit integers, no bytes and no times.
        if "user_id" in row:
            row["user_id"] = int(row["user_id"])
        if "token" in row:
            row["token"] = b64decode(row["token"])
        if "created" in row:
            row["created"] = datetime.fromisoformat(row["created"])
        row["tags"] = list(row.get("tags", {}).items())
        row.setdefault("items", [])
        row.setdefault("codes", [])
        rows.append(row)
    return pa.array(rows, EVENT)


def decode_tuned(messages: pa.Array, path: str) -> pa.Array:
    """ParseFromString, and a builder for each field; absent and zero are NULL, as in Spark."""
    parse = event_class(path).FromString
    parsed = [parse(data) for data in messages.to_pylist()]
    names = event_class(path).DESCRIPTOR.fields_by_name["level"].enum_type.values_by_number
    levels = {number: value.name for number, value in names.items()}
    items = [item for each in parsed for item in each.items]
    tags = [pair for each in parsed for pair in each.tags.items()]
    places = [each.place if each.HasField("place") else None for each in parsed]

    def offsets(lengths: list[int]) -> pa.Array:
        total, found = 0, [0]
        for length in lengths:
            total += length
            found.append(total)
        return pa.array(found, pa.int32())

    columns = [
        pa.array([each.id or None for each in parsed], pa.string()),
        pa.array([each.user_id or None for each in parsed], pa.int64()),
        pa.array([each.shard or None for each in parsed], pa.int32()),
        pa.array([each.active or None for each in parsed], pa.bool_()),
        pa.array([each.score or None for each in parsed], pa.float64()),
        pa.array([each.ratio or None for each in parsed], pa.float32()),
        pa.array([each.token or None for each in parsed], pa.binary()),
        pa.array([levels[each.level] if each.level else None for each in parsed], pa.string()),
        pa.StructArray.from_arrays(
            [
                pa.array([(each and each.city) or None for each in places], pa.string()),
                pa.array([(each and each.latitude) or None for each in places], pa.float64()),
                pa.array([(each and each.longitude) or None for each in places], pa.float64()),
            ],
            fields=list(PLACE),
            mask=pa.array([each is None for each in places]),
        ),
        pa.ListArray.from_arrays(
            offsets([len(each.items) for each in parsed]),
            pa.StructArray.from_arrays(
                [
                    pa.array([each.sku or None for each in items], pa.string()),
                    pa.array([each.quantity or None for each in items], pa.int32()),
                    pa.array([each.price or None for each in items], pa.float64()),
                ],
                fields=list(ITEM),
            ),
        ),
        pa.MapArray.from_arrays(
            offsets([len(each.tags) for each in parsed]),
            pa.array([key for key, _ in tags], pa.string()),
            pa.array([value for _, value in tags], pa.string()),
        ),
        pa.array(
            [
                each.created.seconds * 1_000_000 + each.created.nanos // 1000 if each.HasField("created") else None
                for each in parsed
            ],
            pa.int64(),
        ).view(pa.timestamp("us", "UTC")),
        pa.array([each.retries if each.HasField("retries") else None for each in parsed], pa.int32()),
        pa.ListArray.from_arrays(
            offsets([len(each.codes) for each in parsed]),
            pa.array([code for each in parsed for code in each.codes], pa.int32()),
        ),
        pa.array([each.note or None for each in parsed], pa.string()),
    ]
    return pa.StructArray.from_arrays(columns, [field.name for field in EVENT])


PROTARROW = protarrow.ProtarrowConfig(enum_type=pa.string(), timestamp_type=pa.timestamp("us", "UTC"))


def decode_protarrow(messages: pa.Array, path: str) -> pa.Array:
    """protarrow; zeros stay zeros, which spares it the work to make them NULL."""
    kind = event_class(path)
    parsed = [kind.FromString(data) for data in messages.to_pylist()]
    return protarrow.messages_to_record_batch(parsed, kind, PROTARROW).to_struct_array()


def encode_upb(events: pa.Array, path: str) -> pa.Array:  # noqa: C901 - as users write it
    """to_pylist, and setting attributes."""
    kind = event_class(path)
    numbers = kind.DESCRIPTOR.fields_by_name["level"].enum_type.values_by_name
    levels = {name: value.number for name, value in numbers.items()}
    plain = ("id", "user_id", "shard", "active", "score", "ratio", "token", "retries", "note")
    out = []
    for row in events.to_pylist():
        message = kind()
        for name in plain:
            value = row[name]
            if value is not None:
                setattr(message, name, value)
        if row["level"] is not None:
            message.level = levels[row["level"]]
        if row["place"] is not None:
            place = message.place
            for name, value in row["place"].items():
                if value is not None:
                    setattr(place, name, value)
        for item in row["items"] or ():
            made = message.items.add()
            for name, value in item.items():
                if value is not None:
                    setattr(made, name, value)
        message.tags.update(dict(row["tags"] or ()))
        if row["created"] is not None:
            message.created.FromDatetime(row["created"])
        message.codes.extend(row["codes"] or ())
        out.append(message.SerializeToString())
    return pa.array(out, pa.binary())


def encode_protarrow(events: pa.Array, path: str) -> pa.Array:
    """By protarrow."""
    kind = event_class(path)
    batch = pa.RecordBatch.from_struct_array(events)
    messages = protarrow.record_batch_to_messages(batch, kind)
    return pa.array([message.SerializeToString() for message in messages], pa.binary())
