"""Hostile attempts by who sends messages: rows, descriptors and frames of protobuf, aggregates of the KPL."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from connectors.kinesis.aggregates import MAGIC, open_aggregate
from connectors.kinesis.client.client import Record
from connectors.kinesis.source.records import aggregates, batches
from connectors.protobuf.confluent.frames import FramedDecoder
from connectors.protobuf.confluent.registry import protobuf_registry
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.descriptors import Schema
from connectors.protobuf.schema.plan import compile_plan
from connectors.protobuf.worker import Engine
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.chaos.rigs.hostile_attempts import SAME, Attempt, Kind
from tests.chaos.support.record import ROOT
from tests.support.hostile_answers import BASIC
from tests.support.kinesis_rig import kpl_aggregate
from tests.support.protobuf_generated import descriptor_sets, mixed_rows, tagged, varint
from tests.support.protobuf_rig import Rig, compiled, descriptors, frame_prefix
from tests.unit.protobuf.test_differential import same, values
from tools.protos import compile_set

__all__ = ["MESSAGES"]

EXAMPLES = 20
"""Batches of rows an attempt, as making generated descriptors takes most of its time."""


@contextmanager
def rows(_folder: Path) -> Iterator[Attempt]:
    """Damaged and hostile messages of generated descriptors: each codec gives the same rows and the same bad rows."""

    def attempt() -> dict[str, int]:
        compared: Counter[str] = Counter()

        @seed(random.getrandbits(32))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def compare(data: st.DataObject) -> None:
            found = data.draw(descriptor_sets(dropping=True, recursive=True, wrappers=True))
            options = {"recursive.fields.max.depth": "2"}
            plain, fast = Rig(Engine.PYTHON, found), Rig(Engine.FAST, found)
            messages = data.draw(mixed_rows(plain.schema.find("M0")))
            expected, seen = plain.raw("M0", messages, options), fast.raw("M0", messages, options)
            assert seen.errors == expected.errors, messages
            assert same(values(seen.values), values(expected.values)), messages
            compared["same"] += len(messages)

        compare()
        return compared

    yield attempt


@contextmanager
def descriptor_bytes(_folder: Path) -> Iterator[Attempt]:
    """Damaged descriptor sets, used for columns and for a row."""
    wholes = [descriptors(name) for name in ("behaviours", "behaviours2", "event", "orders")] + [compiled(BASIC)]

    def attempt() -> dict[str, int]:
        data = bytearray(random.choice(wholes))
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(data))
            match random.randrange(4):
                case 0:
                    data[at] = random.randrange(256)
                case 1:
                    del data[at + 1 : at + random.randint(2, 50)]
                case 2:
                    data[at:at] = random.choice([random.randbytes(5), varint(2**63), data[: random.randint(1, 99)]])
                case 3:
                    data[at] ^= 1 << random.randrange(8)
        schema = Schema(bytes(data))
        files = descriptor_pb2.FileDescriptorSet.FromString(bytes(data)).file
        names = [f"{file.package}.{each.name}".lstrip(".") for file in files for each in file.message_type]
        name = random.choice(names or ["M"])
        compile_plan(schema.find(name), schema, ProtobufOptions())
        rig = Rig(random.choice([Engine.PYTHON, Engine.FAST]), bytes(data))
        rig.rows(name, [random.randbytes(9), b""], {"mode": "PERMISSIVE"})
        return SAME

    yield attempt


@contextmanager
def frames(_folder: Path) -> Iterator[Attempt]:
    """Hostile frames of Confluent's wire format beside a good one, which is read."""
    with SchemaRegistryServer() as server:
        rig = Rig(Engine.AUTO, compiled(BASIC))
        schema = server.register("basic", rig.data, "main.proto")
        registry = protobuf_registry(parse_registry_options({"address": server.address, "retry.timeout": "0"}))
        decoder = FramedDecoder(rig.call("Basic").decoder, rig.schema.find("Basic"), registry, permissive=True)
        good = frame_prefix(schema, (0,)) + b"\x08\x05"
        assert not decoder.decode(pa.array([good])).errors

        def frame() -> bytes:
            match random.randrange(5):
                case 0:
                    return random.randbytes(random.randint(0, 20))
                case 1:
                    return frame_prefix(schema, tuple(random.randrange(2**31) for _ in range(3))) + b"\x08\x05"
                case 2:
                    return b"\0" + schema.to_bytes(4, "big") + random.choice([varint(2**63), b"\xff" * 20, b"\x01"])
                case 3:
                    return frame_prefix(random.randrange(2, 40), (0,)) + b"\x08\x05"
            return b"\1" + random.randbytes(random.randint(0, 30))

        def attempt() -> dict[str, int]:
            hostile = [frame() for _ in range(random.randint(1, 20))]
            at = random.randrange(len(hostile) + 1)
            server.requests.clear()
            decoded = decoder.decode(pa.array([*hostile[:at], good, *hostile[at:]]))
            assert decoded.values.to_pylist()[at] == {"id": 5}
            assert at not in decoded.errors
            assert all(len(error.encode()) <= 2000 and error.isprintable() for error in decoded.errors.values())
            assert len(server.requests) <= 100, len(server.requests)
            return {"same": 1, "bad_rows": len(decoded.errors)}

        yield attempt


def _aggregated_record(folder: Path) -> Any:
    """The class of the published .proto file."""
    compile_set(ROOT / "proto" / "kpl" / "messages.proto", folder / "messages.desc")
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString((folder / "messages.desc").read_bytes()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kpl.AggregatedRecord"))


@contextmanager
def kpl(folder: Path) -> Iterator[Attempt]:
    """Damaged aggregates, half of them with a right checksum: one row, or those that protobuf itself reads.

    With a right checksum the sender chose the bytes. Of some that protobuf accepts or refuses for parts that are no
    rows, such as tags, we take another view; then only the number of rows is checked.
    """
    kind = _aggregated_record(folder)

    def attempt() -> dict[str, int]:
        body = bytearray(kpl_aggregate([random.randbytes(random.randint(0, 200)) for _ in range(3)])[4:-16])
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(body))
            match random.randrange(3):
                case 0:
                    body[at] = random.randrange(256)
                case 1:
                    body[at:at] = tagged(random.randint(1, 4), random.randrange(8), varint(random.choice([0, 2**40])))
                case 2:
                    del body[at : at + random.randint(1, 3)]
        right = random.random() < 0.5
        digest = hashlib.md5(body).digest() if right else random.randbytes(16)
        data = MAGIC + bytes(body) + digest
        opened = open_aggregate(data)
        expected = _by_protobuf(kind, bytes(body)) if right and body else None
        found = None if opened is None else [*zip(*opened.rows(0, len(opened)), strict=True)]
        assert found is None or right, data
        assert None in (found, expected) or found == expected, (data, found, expected)
        records = [Record("1", data, "key", 1.0), Record("2", b"x", "key", None)]
        count = sum(map(len, batches(records, aggregates(records), "orders", "shard")))
        assert count == 1 + (1 if found is None else len(found)), data
        return SAME

    yield attempt


def _by_protobuf(kind: Any, body: bytes) -> list[tuple[bytes, str, str | None]] | None:
    """The records of an aggregate by protobuf's own parser; None for a record like any other."""
    try:
        parsed = kind.FromString(body)
        if not all(1 <= len(key) <= 256 for key in parsed.partition_key_table):
            return None
        if not all(
            key == "0" or (key.isascii() and key.isdigit() and key[0] != "0") for key in parsed.explicit_hash_key_table
        ):
            return None
        return [
            (
                each.data,
                parsed.partition_key_table[each.partition_key_index],
                parsed.explicit_hash_key_table[each.explicit_hash_key_index]
                if each.HasField("explicit_hash_key_index")
                else None,
            )
            for each in parsed.records
        ]
    except (DecodeError, IndexError, UnicodeDecodeError):
        return None


MESSAGES = {
    "protobuf_rows": Kind("rows of protobuf, hostile and damaged", rows),
    "descriptors": Kind("descriptor sets, damaged", descriptor_bytes),
    "frames": Kind("frames of Confluent's wire format", frames),
    "kpl": Kind("aggregates of the KPL, damaged", kpl),
}
