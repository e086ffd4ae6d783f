"""Markers of exactly-once writes while a group's coordinator is not ready, on librdkafka's mock cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from connectors.core.errors import OffsetError
from connectors.kafka.options.sink import parse_write_options
from connectors.kafka.sink.commit_markers import Finished, Marker, Markers
from connectors.testing.kafka.mock import MockKafka
from tests.support.alterations import alterations, json_text

REQUEST_TIMED_OUT, LOADING, NO_COORDINATOR, NOT_COORDINATOR = 7, 14, 15, 16


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as running:
        running.create_topic("t", 1)
        yield running


@pytest.mark.parametrize(
    ("request_name", "error"),
    [
        *(("OffsetFetch", error) for error in (REQUEST_TIMED_OUT, LOADING, NO_COORDINATOR, NOT_COORDINATOR)),
        *(("OffsetCommit", error) for error in (LOADING, NO_COORDINATOR, NOT_COORDINATOR)),
        *(("FindCoordinator", error) for error in (LOADING, NO_COORDINATOR)),
    ],
)
def test_a_coordinator_that_is_not_ready_is_waited_for(kafka: MockKafka, request_name: str, error: int) -> None:
    settings = parse_write_options(
        {"kafka.bootstrap.servers": kafka.endpoint, "topic": "t", "deliveryGuarantee": "exactly_once"},
        {},
        streaming=True,
    ).client
    for width in (3, 4):
        markers = Markers(settings, "prefix", "query", "t")
        kafka.fail(request_name, [error])
        assert markers.finished() == (Finished(0) if width == 3 else Finished(3, "run", 2, 1))
        kafka.fail(request_name, [error])
        markers.note(Finished(width, "run", width - 1, 1))
        assert markers.finished() == Finished(width, "run", width - 1, 1)


def test_an_altered_marker_is_the_same_or_a_named_error() -> None:
    right, noted = Marker(12, 7, "00ff", 4, "r1"), Finished(8, "q1", 12, 4)
    for done, altered in alterations(json.loads(right.metadata())):
        try:
            read = Marker.read(13, json_text(altered), "group")
        except OffsetError as error:
            assert error.code == "KAFKA_MARKER_FOREIGN"  # noqa: PT017 - or it is the same
            continue
        assert read is not None
        assert read == right or "digest" in done or "run" in done or done.endswith(str(2**63 - 1)), done
    for done, altered in alterations(json.loads(noted.metadata())):
        read_note = Finished.read(8, json_text(altered))
        assert read_note in (noted, Finished(8)) or "run" in done or done.endswith(str(2**63 - 1)), done


def test_what_an_older_version_noted_says_the_width_alone() -> None:
    assert Finished.read(7, "") == Finished(7)
    assert Finished.read(7, None) == Finished(7)
    assert Finished.read(7, "{}") == Finished(7)
    assert Finished.read(-1001, None) == Finished(0)
    assert not Finished(7).comes_before("", 0)
    assert not Finished(7, "run", 3).comes_before("other", 4)
    assert not Finished(7, "run", 3).comes_before("run", 3)
    assert Finished(7, "run", 3).comes_before("run", 4)
