"""New messages under ids that were read before are noticed; redeliveries are nothing to say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.offsets import SENTINEL
from connectors.spool.stream.micro_batch import SpoolStream
from tests.support.spool_streams import open_stream
from tests.support.spool_writing import HandSpool

MINUTE = 60_000_000


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    spool = HandSpool(tmp_path / "spool")
    spool.open()
    spool.write(["1", "2", "3"], published=10 * MINUTE)
    spool.write(["4", "5"], published=11 * MINUTE)
    return spool


@pytest.fixture
def stream(spool: HandSpool) -> Iterator[SpoolStream]:
    with open_stream(spool.root) as stream:
        stream.latest_offset(SENTINEL, 100)
        yield stream


def until_admitted(stream: SpoolStream, segments: int) -> None:
    """Wait until so many segments are admitted, and the round that did it is over."""
    end = time.monotonic() + 30
    while stream._ledger.state.ordinal < segments:
        assert time.monotonic() < end
        time.sleep(0.01)
    stream.stop()


def reused(caplog: pytest.LogCaptureFixture) -> int:
    return sum("SPOOL_IDS_REUSED" in record.getMessage() for record in caplog.records)


def test_new_messages_under_known_ids_are_said_once(
    spool: HandSpool, stream: SpoolStream, caplog: pytest.LogCaptureFixture
) -> None:
    # An emulator was restarted: other messages, published later, with the ids 1, 2, 3 and on.
    spool.write(["1", "2", "3", "4", "5", "6"], fetcher="f1", published=20 * MINUTE)
    spool.write(["1"], fetcher="f2", published=21 * MINUTE)
    until_admitted(stream, 4)
    assert reused(caplog) == 1
    assert "dedupEpoch" in caplog.text


def test_redeliveries_are_nothing_to_say(
    spool: HandSpool, stream: SpoolStream, caplog: pytest.LogCaptureFixture
) -> None:
    # As they were, among new ones, and twice in one segment.
    spool.write(["4", "5"], fetcher="f1", published=11 * MINUTE)
    spool.write(["6", "6", "7"], fetcher="f1", published=12 * MINUTE)
    spool.write(["6", "7"], fetcher="f2", published=12 * MINUTE)
    spool.write(["1", "2"], fetcher="f2", published=10 * MINUTE)
    until_admitted(stream, 6)
    assert stream._ledger.state.counters["duplicates"] == 7
    assert not reused(caplog)


def test_copies_that_producers_publish_are_nothing_to_say(spool: HandSpool, caplog: pytest.LogCaptureFixture) -> None:
    with open_stream(spool.root, by_message_id=False) as stream:
        stream.latest_offset(SENTINEL, 100)
        spool.write(["1", "2", "3"], fetcher="f1", published=20 * MINUTE)
        until_admitted(stream, 3)
        assert stream._ledger.state.counters["duplicates"] == 3
    assert not reused(caplog)
