"""Markers of exactly-once writes while a group's coordinator is not ready, on librdkafka's mock cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.kafka.markers import MarkerNames, Markers
from connectors.kafka.write_options import parse_write_options
from connectors.testing.kafka import MockKafka

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
    names = MarkerNames("prefix", "query", "t")
    for width in (3, 4):
        with Markers(settings, names) as markers:
            kafka.fail(request_name, [error])
            assert markers.width() == (0 if width == 3 else 3)
            kafka.fail(request_name, [error])
            markers.keep_width(width)
            assert markers.width() == width
