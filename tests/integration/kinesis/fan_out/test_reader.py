"""Tasks with enhanced fan-out: rows come from segments, and where these are lost or damaged from the service."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.kinesis.datasource import read_settings
from connectors.kinesis.fan_out.monitor import FanOut
from connectors.kinesis.fan_out.reader import read_part
from connectors.kinesis.offsets import after, read_offset
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.schema import ARROW_SCHEMA
from connectors.kinesis.shards import ShardRange
from connectors.kinesis.source.micro_batch import KinesisStream
from connectors.kinesis.source.records import MAX_ROWS
from connectors.kinesis.source.shard_monitor import ShardMonitor
from connectors.spool.segments.segment import SEGMENT, SealedReader, SegmentReader, SegmentWriter
from connectors.spool.store import open_store
from connectors.testing.kinesis import KinesisServerProcess
from tests.support.kinesis_efo import Efo
from tests.support.kinesis_rig import PATIENCE, kpl_aggregate, wait_until
from tests.support.spark_protocol.driver import (
    DriverCrashedError,
    ReaderFailedError,
    StreamingQuery,
    TaskFailedError,
    descendants,
    is_running,
)


def delete(spool: Path) -> None:
    """Delete a spool, also while a fetcher puts segments into its folders."""
    while spool.exists():
        shutil.rmtree(spool, ignore_errors=True)


def test_a_new_checkpoint_reads_nothing_that_an_earlier_query_left_in_the_spool(efo: Efo) -> None:
    with efo.query() as query:
        efo.until_live(query)
        values = efo.rig.put(10)
        efo.rig.drain(query, values)
        assert efo.segments() != []
    for each in ("checkpoint", "sink"):
        shutil.rmtree(efo.rig.folder / each)
    efo.rig.server.trim(efo.rig.stream, efo.rig.server.shards(efo.rig.stream)[0], 10)
    with efo.query() as query:
        values = efo.rig.put(5)
        efo.rig.drain(query, values)


_monitors: dict[str, ShardMonitor] = {}
"""One for a stream: to make a client takes longer than to plan a batch."""


@pytest.fixture(scope="module", autouse=True)
def end_of_monitors(server: KinesisServerProcess) -> Iterator[None]:  # noqa: ARG001 - it must still be there
    yield
    while _monitors:
        _monitors.popitem()[1].stop()  # else they would ask a server that is gone, for as long as an outage may last


def _rows(efo: Efo, ranges: Sequence[ShardRange], **more: str) -> list[dict[str, Any]]:
    """The rows that tasks read of these ranges."""
    options = parse_read_options(efo.rig.options(**efo.options(**more)), {}, streaming=True)
    settings = read_settings(options, 1.0)
    return [row for part in ranges for batch in read_part(part, settings) for row in batch.to_pylist()]


def _planned(efo: Efo, start: dict[str, Any], end: dict[str, Any], **more: str) -> list[ShardRange]:
    """The ranges of a batch as a new source process plans them, from what is in the spool."""
    options = parse_read_options(efo.rig.options(**efo.options(**more)), {}, streaming=True)
    if efo.rig.stream not in _monitors:
        _monitors[efo.rig.stream] = ShardMonitor(options)
    monitor = _monitors[efo.rig.stream]
    monitor.push_source = FanOut(options, monitor)
    return KinesisStream(options, monitor).partitions(start, end)


def _all_is_known(efo: Efo, query: StreamingQuery) -> bool:
    """Whether the source process knows of the newest record of each shard."""
    newest = {record.shard: after(record.sequence_number) for record in efo.rig.server.records(efo.rig.stream)}
    (state,) = read_offset(json.loads(str(query.reader.report_latest_offset()))).values()
    return newest == {shard: state.shards[shard].position for shard in newest}


def _put_three_times(efo: Efo) -> None:
    kept = efo.spooled_rows()
    for number in range(1, 4):
        efo.rig.put(40, size=50)
        wait_until(lambda number=number: efo.spooled_rows() == kept + 40 * number)


def _batch_of_segments(
    efo: Efo, fill: Callable[[Efo], None] = _put_three_times, shards: int = 2
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The offsets of a batch of many segments, which was planned and not read."""
    with efo.query() as query:
        efo.until_live(query, shards)
        values = efo.rig.put(10)
        efo.rig.drain(query, values)
        fill(efo)
        wait_until(lambda: _all_is_known(efo, query))  # it is told of a segment when that is there
        children = descendants(query.reader.pid)
        query.crash_at("offsets_logged")
        with pytest.raises(DriverCrashedError):
            query.run_until(lambda _batches: False, PATIENCE)
        number = query.checkpoint.latest_offsets or 0
        start, end = query.checkpoint.offsets(number - 1)[0], query.checkpoint.offsets(number)[0]
    wait_until(lambda: not any(is_running(each) for each in children))
    return json.loads(str(start)), json.loads(str(end))


def _truncated(path: Path, _other: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _emptied(path: Path, _other: Path) -> None:
    os.truncate(path, 0)


def _deleted(path: Path, _other: Path) -> None:
    path.unlink()


def _changed(path: Path, _other: Path) -> None:
    """A byte of its rows is another one."""
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)


def _replaced(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def _swapped(path: Path, other: Path) -> None:
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def test_each_segment_of_a_batch_may_be_lost_or_damaged_and_the_rows_are_the_same(two: Efo) -> None:
    start, end = _batch_of_segments(two)
    ranges = _planned(two, start, end)
    wanted = _rows(two, ranges)
    assert len(wanted) == 120
    assert two.polls(lambda: _rows(two, ranges)) == 0
    named = {piece.segment for part in ranges for piece in part.pieces}
    paths = [two.spool / name for name in sorted(named)]
    assert len(paths) >= 3
    saved = {path: path.read_bytes() for path in paths}
    for path in paths:
        other = next(each for each in paths if each != path)
        for harm in (_deleted, _truncated, _emptied, _changed, _replaced, _swapped):
            harm(path, other)
            found: list[dict[str, Any]] = []
            assert two.polls(lambda found=found: found.extend(_rows(two, ranges))) > 0, "what is lost is polled"
            assert found == wanted, (harm, path)
            assert _rows(two, _planned(two, start, end)) == wanted, (harm, path)
            for each, data in saved.items():
                each.write_bytes(data)


def _rewritten(path: Path, spool: Path, elsewhere: Path, version: str, *columns: str) -> None:
    """The segment as a version of the pack would have it whose rows have these columns; an empty one states none."""
    reader = SegmentReader(open_store(str(spool), "look"), path.relative_to(spool).as_posix())
    (keys, sizes), info = reader.index(), reader.info
    stored = pa.Table.from_batches([batch for _, batch in reader.batches(0, info.rows)])
    table = stored.append_column("region", pa.nulls(info.rows, pa.string())).select(columns)
    (rows,) = table.combine_chunks().to_batches()
    schema = rows.schema.with_metadata({"spool.rows.version": version} if version else None)
    store = open_store(str(elsewhere), "look")
    store.make_root()
    writer = SegmentWriter(store, reader.spool, info.fetcher, info.number, schema, info.source)
    writer.append(rows, keys, sizes, info.published, notes=reader.notes)
    path.write_bytes((elsewhere / writer.publish().name).read_bytes())


def test_segments_of_other_versions_are_used_or_absent_and_the_rows_are_the_same(two: Efo, tmp_path: Path) -> None:
    start, end = _batch_of_segments(two)
    saved = {path: path.read_bytes() for path in two.segments()}
    assert all(_version_of(data) == b"1" for data in saved.values())
    wanted = _rows(two, _planned(two, start, end))
    assert len(wanted) == 120
    columns = ARROW_SCHEMA.names
    for number, (version, names, is_used) in enumerate(
        [
            ("", columns, True),
            ("1", columns[::-1], True),
            ("", columns[:-1], False),
            ("1", columns[:-1], False),
            ("2", columns, False),
            ("2", [*columns, "region"], False),
            ("", [*columns, "region"], False),
        ]
    ):
        for path in saved:
            _rewritten(path, two.spool, tmp_path / f"rewritten-{number}", version, *names)
        found: list[dict[str, Any]] = []
        ranges = _planned(two, start, end)
        assert bool([piece for part in ranges for piece in part.pieces]) == is_used, (version, names)
        polls = two.polls(lambda found=found, ranges=ranges: found.extend(_rows(two, ranges)))
        assert (polls == 0) == is_used, (version, names)
        assert found == wanted, (version, names)
        for path, data in saved.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _version_of(segment: bytes) -> bytes:
    with pa.ipc.open_stream(segment) as stream:
        return dict(stream.schema.metadata)[b"spool.rows.version"]


def test_28_an_aggregate_is_spooled_in_parts_and_the_rows_are_the_same_when_any_part_is_damaged(efo: Efo) -> None:
    data = [b"%d" % number for number in range(2 * MAX_ROWS + 5)]

    def fill(efo: Efo) -> None:
        kept = efo.spooled_rows()
        aggregate = kpl_aggregate(data)
        efo.rig.server.put(efo.rig.stream, [("k", b"before"), ("k", aggregate), ("k", b"after")])
        wait_until(lambda: efo.spooled_rows() == kept + len(data) + 2)

    ranges = _planned(efo, *_batch_of_segments(efo, fill, 1))
    wanted = _rows(efo, ranges)
    assert [row["data"] for row in wanted] == [b"before", *data, b"after"]
    options = parse_read_options(efo.rig.options(**efo.options()), {}, streaming=True)
    sizes = [len(batch) for part in ranges for batch in read_part(part, read_settings(options, 1.0))]
    assert max(sizes) <= MAX_ROWS
    polled = _rows(efo, ranges, spoolLocation=str(efo.spool / "elsewhere"))
    assert polled == wanted, "rows are those of polling"
    (path,) = {efo.spool / piece.segment for part in ranges for piece in part.pieces if piece.end_row > MAX_ROWS}
    whole = path.read_bytes()
    blocks = SealedReader(open_store(str(efo.spool), "look"), path.relative_to(efo.spool).as_posix(), SEGMENT, None)
    places = [section["offset"] + section["length"] // 2 for section in blocks.of_kind("block")]
    assert len(places) >= 3
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found: list[dict[str, Any]] = []
        assert efo.polls(lambda found=found: found.extend(_rows(efo, ranges))) > 0
        assert found == wanted, place
    path.write_bytes(whole)


def _empty_aggregate() -> bytes:
    """A KPL aggregate with a key and no record."""
    body = b"\x0a\x01k"
    return b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body).digest()


def test_26_what_a_segment_held_that_is_lost_before_it_was_looked_at_is_polled(efo: Efo) -> None:
    """The subscription lives on, so nothing else would ever look at the shard."""
    with efo.query() as query:
        efo.until_live(query)
        values = efo.rig.put(5)
        efo.rig.drain(query, values)
        for harm, later in ((_deleted, 5), (_truncated, 0)):
            before = set(efo.segments())
            os.kill(query.reader.pid, signal.SIGSTOP)
            try:
                values += efo.rig.put(5)
                wait_until(lambda before=before: set(efo.segments()) > before)
                for path in set(efo.segments()) - before:
                    harm(path, path)
                values += efo.rig.put(later)
            finally:
                os.kill(query.reader.pid, signal.SIGCONT)
            efo.rig.drain(query, values)
        efo.until_live(query)
        efo.rig.server.put(efo.rig.stream, [("k", _empty_aggregate())])  # no row, so no segment says that it was there
        values += efo.rig.put(5)
        efo.rig.drain(query, values)


def test_an_executor_that_cannot_see_the_spool_polls_a_range_in_one_go(two: Efo, tmp_path: Path) -> None:
    start, end = _batch_of_segments(two)
    ranges = _planned(two, start, end)
    wanted = _rows(two, ranges)
    assert sum(len(part.pieces) for part in ranges) >= 5
    found: list[dict[str, Any]] = []
    calls = two.rig.calls(
        "GetShardIterator", lambda: found.extend(_rows(two, ranges, spoolLocation=str(tmp_path / "elsewhere")))
    )
    assert found == wanted
    assert calls == len(ranges)


def test_segments_of_another_service_or_of_other_options_are_foreign(two: Efo) -> None:
    start, end = _batch_of_segments(two)
    ranges = _planned(two, start, end)
    wanted = _rows(two, ranges)
    foreign = _planned(two, start, end, deaggregate="false")
    assert not any(part.pieces for part in foreign)
    assert _rows(two, foreign) == wanted


def test_a_task_fails_when_neither_spool_nor_stream_has_the_records(efo: Efo) -> None:
    with efo.query() as query:
        efo.until_live(query)
        values = efo.rig.put(5)
        efo.rig.drain(query, values)
        efo.rig.put(5)
        query.crash_at("offsets_logged")
        with pytest.raises(DriverCrashedError):
            query.run_until(lambda _batches: False, PATIENCE)
        delete(efo.spool)
        efo.rig.server.trim(efo.rig.stream, efo.rig.server.shards(efo.rig.stream)[0], 10)
        query.start()
        with pytest.raises((ReaderFailedError, TaskFailedError), match="KINESIS_DATA_LOSS"):
            query.run_until(lambda _batches: False, PATIENCE)
