"""Markers of exactly-once writes: which batch a partition of a query wrote last, as the offset of a consumer group.

The group of a partition has the name of its transactional id. The offset is 0 for no batch and n + 1 for batch n; its
metadata hold the number of rows, their digest, the high-water mark (the highest number of partitions so far, stored as
``width``), and the attempt: the name of one plan of the batch. Marker and rows are committed in one transaction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, Self, TypeVar

from connectors.core.errors import OffsetError
from connectors.core.offsets import parse_json, whole_number
from connectors.core.retry import wait_out
from connectors.kafka.client.errors import connector_error
from connectors.kafka.client.factory import client_exception, open_admin
from connectors.kafka.client.group_offsets import CALL_SECONDS, read_group_offset, set_group_offset
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.sink.rows import ProducerRecord

T = TypeVar("T")

_VERSION: Final = 1
_DIGEST_BYTES: Final = 16
_MODULUS: Final = 1 << (8 * _DIGEST_BYTES)
_CONCURRENT_STEPS: Final = 8
_PARTITION: Final = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Marker:
    """What a partition wrote last; ``digest`` does not depend on the order of the rows."""

    batch: int
    rows: int
    digest: str
    high_water: int
    attempt: str

    def metadata(self) -> str:
        value = {"v": _VERSION, "rows": self.rows, "digest": self.digest, "width": self.high_water, "run": self.attempt}
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def read(cls, offset: int, metadata: str | None, where: str) -> Marker | None:
        """Read a marker from an offset of its group, None if there is none; raises if something else uses the group."""
        if offset <= 0:
            return None
        try:
            value = parse_json(metadata or "")
            if whole_number(value["v"]) == _VERSION and all(type(value[key]) is str for key in ("digest", "run")):
                rows, high_water = whole_number(value["rows"]), whole_number(value["width"])
                return cls(offset - 1, rows, value["digest"], high_water, value["run"])
        except (ValueError, KeyError, TypeError):
            pass
        what = f"The group of a marker holds the offset {offset} with the metadata {str(metadata)[:200]!r}"
        raise OffsetError("KAFKA_MARKER_FOREIGN", what, where)


@dataclass(frozen=True, slots=True)
class Finished:
    """What the driver notes when a batch ends: which it was, and the high-water mark so far, 0 if unknown."""

    high_water: int
    query_run: str = ""
    batch: int = -1
    partitions: int = 0

    def metadata(self) -> str:
        value = {"v": _VERSION, "run": self.query_run, "batch": self.batch, "partitions": self.partitions}
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> Self:
        """Read it from an offset of its group; of metadata that something else wrote, nothing is used."""
        high_water = max(0, offset)
        try:
            value = parse_json(metadata or "")
            if whole_number(value["v"]) != _VERSION or type(value["run"]) is not str:
                return cls(high_water)
            return cls(high_water, value["run"], whole_number(value["batch"]), whole_number(value["partitions"]))
        except (ValueError, KeyError, TypeError):
            return cls(high_water)

    def comes_before(self, query_run: str, batch: int) -> bool:
        """Return whether this run of the query noted the batch right before this one, which then is no replay."""
        return bool(query_run) and (self.query_run, self.batch) == (query_run, batch - 1)


class Digest:
    """A digest of rows that does not depend on their order."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, record: ProducerRecord) -> None:
        topic, key, value, partition, time, headers = record
        own = blake2b(digest_size=_DIGEST_BYTES)
        own.update(b"%d %d " % (partition, time))
        own.update(_framed((topic.encode(), key, value)))
        for name, content in headers or ():
            own.update(_framed((name.encode(), content)))
        self._sum = (self._sum + int.from_bytes(own.digest(), "big")) % _MODULUS
        self.rows += 1

    def counted(self, records: Iterable[ProducerRecord]) -> Iterator[ProducerRecord]:
        """Yield rows, and add them."""
        for record in records:
            self.add(record)
            yield record

    @property
    def text(self) -> str:
        return f"{self._sum:0{2 * _DIGEST_BYTES}x}"


def _framed(parts: Iterable[bytes | None]) -> bytes:
    """Join parts so that no two lists give the same bytes."""
    return b"".join(b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts)


class Markers:
    """The markers of a query and its driver's note, by the offsets of groups in partition 0 of ``topic``.

    Attributes:
        stem: what the groups and transactional ids of the query begin with.
        note_group: the group of the driver's note (`Finished`), whose offset is the high-water mark.
    """

    def __init__(self, settings: ClientSettings, prefix: str, query: str, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self.stem = f"{prefix}-{query}-"
        self.note_group = f"{self.stem}width"

    def group(self, partition: int) -> str:
        return f"{self.stem}{partition}"

    @cached_property
    def _admin(self) -> Any:
        """The admin client, which tasks do not need; it closes with the last reference to it."""
        return open_admin(self._settings)

    def of(self, partitions: Iterable[int], *, fenced: bool = False) -> dict[int, Marker]:
        """Return the markers of some partitions; if these are fenced, after a pending commit of one has ended."""

        def read(partition: int) -> Marker | None:
            group = self.group(partition)
            return Marker.read(*read_group_offset(self._settings, group, self._topic, stable=fenced), group)

        wanted = list(partitions)
        markers = zip(wanted, for_each(read, wanted), strict=True)
        return {partition: marker for partition, marker in markers if marker is not None}

    def finished(self) -> Finished:
        return Finished.read(*read_group_offset(self._settings, self.note_group, self._topic))

    def note(self, finished: Finished) -> None:
        """Note that a batch has ended; with every batch, else the note would expire."""
        rule = self._settings.outage_rule
        set_group_offset(self._admin, rule, self.note_group, self._topic, finished.high_water, finished.metadata())

    def partitions(self) -> list[int]:
        """Return every partition that ever wrote a marker, unless that is gone."""

        def list_groups() -> list[str]:
            try:
                listed = self._admin.list_consumer_groups(request_timeout=CALL_SECONDS).result()
            except client_exception() as error:
                raise connector_error(error.args[0], "the list of groups") from None
            for problem in listed.errors:
                raise connector_error(problem, "the list of groups")
            return [group.group_id for group in listed.valid if group.group_id.startswith(self.stem)]

        numbers = (group.removeprefix(self.stem) for group in wait_out(list_groups, self._settings.outage_rule))
        return sorted(int(number) for number in numbers if _PARTITION.fullmatch(number))


def for_each(step: Callable[[int], T], partitions: Iterable[int]) -> list[T]:
    """Return what a step returns for each partition; a few run at a time."""
    with ThreadPoolExecutor(_CONCURRENT_STEPS) as pool:
        return list(pool.map(step, partitions))
