"""A source that gives nothing more ends a query only when all that the spool has of it was served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    SourceGoneError,
    SpoolDamagedError,
    SpoolFencedError,
)
from connectors.core.offsets import SENTINEL
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.stream.admission import StartedFetching
from connectors.spool.stream.micro_batch import SpoolStream
from tests.support.spool_streams import NoFetchers, open_stream, rows_of
from tests.support.spool_writing import SOURCES, HandSpool
from tests.support.waiting import wait_for

ROWS = 12
BATCH = 5
GONE = SourceGoneError("PUBSUB_SUBSCRIPTION_NOT_FOUND", "It does not exist", SOURCES[0], "Look for it.")


class LostFetchers(NoFetchers):
    """Fetchers that have ended with an error; `at_end` is what they do before they are gone."""

    def __init__(self, error: ConnectorError, at_end: Callable[[], None] = lambda: None) -> None:
        self._error = error
        self._at_end: list[Callable[[], None]] = [at_end]

    def terminal_error(self) -> ConnectorError:
        return self._error

    def stop(self) -> None:
        if self._at_end:
            self._at_end.pop()()


def lost_at_the_start(error: ConnectorError) -> Callable[..., StartedFetching]:
    def start(_ledger: Ledger, _wake: Callable[[], None]) -> StartedFetching:
        raise error

    return start


def lost_later(error: ConnectorError, at_end: Callable[[], None] = lambda: None) -> Callable[..., StartedFetching]:
    return lambda _ledger, _wake: (LostFetchers(error, at_end), 86_400.0)


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    """Rows that were acked, some of them not yet admitted."""
    made = HandSpool(tmp_path / "spool")
    ledger = made.open()
    made.write([f"a{number}" for number in range(ROWS // 2)])
    ledger.admit()
    made.write([f"b{number}" for number in range(ROWS // 2)], fetcher="f1")
    return made


def read_to_the_end(stream: SpoolStream, spool: HandSpool, most: int | None = BATCH) -> tuple[list[int], Exception]:
    """The positions of all batches that Spark gets, each committed, and what ended them."""
    start: Any = SENTINEL
    found: list[int] = []
    while True:
        try:
            end = stream.latest_offset(start, most)
        except ConnectorError as error:
            return found, error
        found += [position for position, _ in rows_of(spool.root, stream.partitions(start, end))]
        stream.commit(start := end)


@pytest.mark.parametrize("most", [BATCH, None])
@pytest.mark.parametrize("lost", [lost_at_the_start, lost_later])
@pytest.mark.parametrize("kind", [SourceGoneError, AccessDeniedError, CredentialsError])
def test_all_rows_are_served_before_the_error(
    spool: HandSpool, kind: type[ConnectorError], lost: Callable[..., Any], most: int | None
) -> None:
    error = kind("CODE", "It is wrong", "here", "Mend it.")
    with open_stream(spool.root, lost(error), starting_position="earliest", start_timeout=20.0) as stream:
        found, raised = read_to_the_end(stream, spool, most)
    assert found == list(range(ROWS))
    assert type(raised) is kind
    assert str(raised) == f"[CODE] It is wrong. The spool is drained: all of its {ROWS} rows were read (here). Mend it."


def test_what_fetchers_publish_at_their_end_is_served_too(spool: HandSpool) -> None:
    late: list[str] = ["c0", "c1"]
    lost = lost_later(GONE, lambda: spool.write(late, fetcher="f2") and None)
    with open_stream(spool.root, lost, starting_position="earliest") as stream:
        found, _ = read_to_the_end(stream, spool)
    assert found == list(range(ROWS + len(late)))


def test_what_a_fetcher_of_the_query_before_publishes_at_its_end_is_waited_for(spool: HandSpool) -> None:
    spool.write(["c0"], fetcher="f2")
    hold = spool.store.hold_folder("inbox/f2")
    assert hold is not None
    with open_stream(spool.root, lost_at_the_start(GONE), starting_position="earliest") as stream:
        wait_for(lambda: stream._background._fetching_ended is not None)
        wait_for(lambda: stream._ledger.state.head == ROWS + 1)
        assert not stream._background.complete
        spool.write(["c1"], fetcher="f2")
        hold.release()
        found, _ = read_to_the_end(stream, spool, None)
    assert found == list(range(ROWS + 2))


@pytest.mark.parametrize("quiet", [0.0, 3600.0])
def test_available_now_serves_all_rows_and_ends_with_the_error(spool: HandSpool, quiet: float) -> None:
    settings = {"available_now_quiet": quiet, "available_now_max_wait": quiet, "starting_position": "earliest"}
    with open_stream(spool.root, lost_at_the_start(GONE), **settings) as stream:
        stream.prepare_for_available_now()
        found, raised = read_to_the_end(stream, spool)
    assert found == list(range(ROWS))
    assert isinstance(raised, SourceGoneError)


def test_with_other_sources_the_error_says_how_they_go_on(tmp_path: Path) -> None:
    sources = (*SOURCES, "projects/p/subscriptions/t")
    with open_stream(tmp_path / "spool", sources=sources):
        pass
    spool = HandSpool(tmp_path / "spool", sources=sources)
    spool.write(["a", "b"])
    with open_stream(spool.root, lost_later(GONE), sources=sources, starting_position="earliest") as stream:
        found, raised = read_to_the_end(stream, spool)
    assert found == [0, 1]
    assert str(raised).endswith(
        "Look for it. A query of the other sources continues with a new spool and a new checkpoint."
    )


def test_a_spool_that_never_had_rows_ends_at_once_with_the_error_as_it_is(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    with open_stream(spool.root, lost_at_the_start(GONE), start_timeout=3600.0) as stream:
        found, raised = read_to_the_end(stream, spool)
    assert found == []
    assert str(raised) == str(GONE)


@pytest.mark.parametrize("kind", [SpoolDamagedError, SpoolFencedError, ConnectorError])
@pytest.mark.parametrize("lost", [lost_at_the_start, lost_later])
def test_what_is_wrong_with_the_spool_or_the_fetchers_stops_the_query_at_once(
    spool: HandSpool, kind: type[ConnectorError], lost: Callable[..., Any]
) -> None:
    start = lost(kind("CODE", "It is wrong"))
    with open_stream(spool.root, start, starting_position="earliest", start_timeout=20.0) as stream:
        wait_for(lambda: stream._background.error or stream._background.compaction)
        with pytest.raises(kind, match=r"^\[CODE\] It is wrong\.$"):
            stream.latest_offset(SENTINEL, BATCH)
