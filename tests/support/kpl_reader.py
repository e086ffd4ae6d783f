"""What readers of the KPL's format make of records: by the published .proto file, and by the rule of Amazon's KCL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tools.protos import compile_set

MAGIC = b"\xf3\x89\x9a\xc2"
_PROTO = Path(__file__).parents[2] / "proto" / "kpl" / "messages.proto"


class UserRecord(NamedTuple):
    """A record as its producer knows it."""

    key: str
    data: bytes
    hash_key: str | None = None

    @property
    def effective_hash_key(self) -> int:
        """The hash key by which the service would place it."""
        if self.hash_key is not None:
            return int(self.hash_key)
        return int.from_bytes(hashlib.md5(self.key.encode()).digest(), "big")


class Stored(Protocol):
    """A record of a shard."""

    shard: str
    partition_key: str
    data: bytes


@cache
def aggregated_record() -> Any:
    """Return the class AggregatedRecord of the published .proto file."""
    with TemporaryDirectory() as folder:
        target = Path(folder) / "messages.desc"
        compile_set(_PROTO, target)
        files = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kpl.AggregatedRecord"))


def user_records(data: bytes) -> list[UserRecord] | None:
    """Return the records of an aggregate; None when it is none."""
    if not data.startswith(MAGIC):
        return None
    body, digest = data[4:-16], data[-16:]
    assert hashlib.md5(body).digest() == digest
    parsed = aggregated_record().FromString(body)
    assert parsed.SerializeToString() == body, "protobuf writes it in another way"
    hash_keys = parsed.explicit_hash_key_table
    return [
        UserRecord(
            parsed.partition_key_table[each.partition_key_index],
            each.data,
            hash_keys[each.explicit_hash_key_index] if each.HasField("explicit_hash_key_index") else None,
        )
        for each in parsed.records
    ]


def kcl_records(stored: Iterable[Stored], ranges: Mapping[str, tuple[int, int]]) -> list[UserRecord]:
    """Return what the KCL makes of records: it drops an aggregate with a record that is not its shard's.

    So does `AggregatorUtil` of amazon-kinesis-client; ``ranges`` are the first and last hash key of each shard.
    """
    found: list[UserRecord] = []
    for record in stored:
        records = user_records(record.data)
        if records is None:
            found.append(UserRecord(record.partition_key, record.data))
            continue
        first, last = ranges[record.shard]
        if all(first <= each.effective_hash_key <= last for each in records):
            found += records
    return found
