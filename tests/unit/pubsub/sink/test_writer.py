"""The publisher: how much is under way, the order of a key, tries again, and what ends a task."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from google.pubsub_v1 import types

from connectors.core.errors import AccessDeniedError, ConnectorError, ServiceUnavailableError
from connectors.pubsub.options.sink import PubSubWriteOptions
from connectors.pubsub.sink.rows import PublishRequest, RowStamp, SinkColumns, publish_requests
from connectors.pubsub.sink.writer import Publisher
from tests.support.waiting import wait_for

TOPIC = "projects/shop/topics/orders"
COLUMNS = SinkColumns("payload", None, "key", None, TOPIC, None)
LIMITS = PubSubWriteOptions(max_outstanding_bytes=1 << 20, retry_timeout=30.0)

UNAVAILABLE = ServiceUnavailableError("PUBSUB_UNAVAILABLE", "Publish failed with UNAVAILABLE")
DENIED = AccessDeniedError("PUBSUB_PERMISSION_DENIED", "Publish is denied")
REFUSED = ConnectorError("PUBSUB_PUBLISH_REFUSED", "The service refuses a message of a request")

Answer = Callable[[list[Any]], ConnectorError | None]


class Call:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Service:
    """Answers requests in threads of its own, and keeps what it took in the order of taking it.

    Args:
        answer: the error for the messages of a request; None takes them.
        takes_failed: take them although the answer is an error, as when the answer is lost.
        wait: called before a request is answered.
    """

    def __init__(
        self,
        answer: Answer = lambda _: None,
        *,
        takes_failed: bool = False,
        wait: Callable[[list[Any]], None] = lambda _: None,
    ) -> None:
        self.taken: list[Any] = []
        self.most_under_way = 0
        self.answered = 0
        self.calls: list[Call] = []
        self._answer = answer
        self._takes_failed = takes_failed
        self._wait = wait
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()
        self._random = random.Random(1)
        self.pool = ThreadPoolExecutor(64)

    def publish(self, topic: str, request: bytes, *, timeout_seconds: float, done: Callable[[Any], None]) -> Call:
        assert timeout_seconds > 0
        parsed = types.PublishRequest.pb().FromString(request)
        assert parsed.topic == topic
        messages = list(parsed.messages)
        key = messages[0].ordering_key
        with self._lock:
            assert not key or not self._under_way[key], "two requests of one key at a time"
            self._under_way[key] += 1
            self.most_under_way = max(self.most_under_way, self._under_way.total())
        call = Call()
        self.calls.append(call)
        self.pool.submit(self._serve, messages, call, done)
        return call

    def _serve(self, messages: list[Any], call: Call, done: Callable[[Any], None]) -> None:
        self._wait(messages)
        time.sleep(self._random.random() / 500)
        with self._lock:
            self._under_way[messages[0].ordering_key] -= 1
            failure = self._answer(messages)
            if failure is None or self._takes_failed:
                self.taken += messages
        if not call.cancelled:
            done(failure)
        self.answered += 1

    def rows(self, key: str = "") -> list[int]:
        return [int(message.data) for message in self.taken if message.ordering_key == key]


def requests(keys: Iterable[str], rows_a_batch: int = 10) -> list[PublishRequest]:
    """Requests for numbered rows with these keys."""
    numbered = list(enumerate(keys))
    payloads = [str(number).encode() for number, _ in numbered]
    whole = pa.RecordBatch.from_pydict({"payload": payloads, "key": [key for _, key in numbered]})
    stamp = RowStamp("", "", 0)
    made: list[PublishRequest] = []
    for start in range(0, len(numbered), rows_a_batch):
        made += publish_requests([whole.slice(start, rows_a_batch)], COLUMNS, stamp)
    return made


def publish(
    service: Service,
    made: Iterable[PublishRequest],
    limits: PubSubWriteOptions = LIMITS,
    warn_seconds: float = 10.0,
) -> Publisher:
    publisher = Publisher(service, limits, "partition 5", warn_seconds)  # type: ignore[arg-type]
    try:
        for request in made:
            publisher.publish(request)
        publisher.finish()
    finally:
        publisher.discard()
        service.pool.shutdown()
    return publisher


def flaky(fraction: float) -> Answer:
    chances = random.Random(2)
    return lambda _: UNAVAILABLE if chances.random() < fraction else None


def test_all_is_published_and_no_more_is_under_way_than_allowed() -> None:
    service = Service()
    publish(service, requests([""] * 500))
    assert sorted(service.rows()) == list(range(500))
    assert 2 <= service.most_under_way <= 16


@pytest.mark.parametrize("takes_failed", [False, True])
def test_a_key_keeps_its_order_through_errors(takes_failed: bool) -> None:
    keys = random.Random(3).choices(["a", "b", "c", ""], k=400)
    service = Service(flaky(0.3), takes_failed=takes_failed)
    publish(service, requests(keys))
    for key in ("a", "b", "c"):
        expected = [number for number, each in enumerate(keys) if each == key]
        found = service.rows(key)
        first_times = list(dict.fromkeys(found))
        assert first_times == expected
        if not takes_failed:
            assert found == expected
    assert set(service.rows()) == {number for number, each in enumerate(keys) if not each}


def test_one_busy_key_does_not_hold_up_others() -> None:
    others_done = threading.Event()

    def wait(messages: list[Any]) -> None:
        if messages[0].ordering_key == "slow":
            assert others_done.wait(10)

    def answer(_: list[Any]) -> None:
        if len(service.taken) == 19:
            others_done.set()

    service = Service(answer, wait=wait)
    publish(service, requests(["slow"] * 40 + [f"key-{number}" for number in range(20)]))
    assert service.rows("slow") == list(range(40))


def test_bytes_that_are_held_are_limited() -> None:
    made = requests([""] * 200)
    size = made[0].size
    service = Service()
    publish(
        service,
        made,
        PubSubWriteOptions(max_outstanding_bytes=3 * size, retry_timeout=30.0),
    )
    assert service.most_under_way <= 3
    assert len(service.taken) == 200


def test_a_request_larger_than_the_limit_passes_alone() -> None:
    service = Service()
    publish(
        service,
        requests([""] * 50),
        PubSubWriteOptions(max_outstanding_bytes=1, retry_timeout=30.0),
    )
    assert service.most_under_way == 1
    assert len(service.taken) == 50


def test_errors_that_do_not_pass_end_with_the_last_one() -> None:
    service = Service(lambda _: UNAVAILABLE)
    with pytest.raises(ServiceUnavailableError):
        publish(
            service,
            requests([""] * 10),
            PubSubWriteOptions(max_outstanding_bytes=1 << 20, retry_timeout=0.5),
        )
    assert len(service.calls) > 1


def interrupted(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    return [text for text in found if text.startswith("[PUBSUB_PUBLISH_INTERRUPTED] Nothing of partition 5 ")]


def test_a_service_that_stays_away_is_said_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    since_said: list[int] = []

    def answer(_: list[Any]) -> ConnectorError:
        if interrupted(caplog):
            since_said.append(1)
        return UNAVAILABLE if len(since_said) < 8 else DENIED

    service = Service(answer)
    publisher = Publisher(service, LIMITS, "partition 5", warn_seconds=0.0)  # type: ignore[arg-type]
    for request in requests([""] * 30):
        publisher.publish(request)
    wait_for(lambda: service.answered >= 3)  # so the error is known before anything is said
    with pytest.raises(AccessDeniedError):
        publisher.finish()
    publisher.discard()
    service.pool.shutdown()
    [said] = interrupted(caplog)
    assert str(UNAVAILABLE) in said


def test_a_service_that_does_not_answer_is_said_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    publish(Service(wait=lambda _: wait_for(lambda: interrupted(caplog))), requests([""] * 20), warn_seconds=0.1)
    [said] = interrupted(caplog)
    assert "has not responded" in said


def test_errors_that_pass_soon_are_not_said(caplog: pytest.LogCaptureFixture) -> None:
    publish(Service(flaky(0.3)), requests([""] * 300))
    assert not interrupted(caplog)


def test_an_error_that_no_retry_mends_ends_at_once() -> None:
    service = Service(lambda _: DENIED)
    with pytest.raises(AccessDeniedError):
        publish(service, requests([""] * 10))
    assert len(service.calls) == 1


@pytest.mark.parametrize("key", ["", "a"])
def test_a_row_that_the_service_refuses_is_named(key: str) -> None:
    def answer(messages: list[Any]) -> ConnectorError | None:
        return REFUSED if any(message.data == b"37" for message in messages) else None

    service = Service(answer)
    with pytest.raises(ConnectorError, match="Row 37 of partition 5 cannot be published") as raised:
        publish(service, requests([key] * 100, rows_a_batch=100))
    assert raised.value.code == "PUBSUB_BAD_ROW"
    if key:
        assert service.rows(key) == list(range(37))


@pytest.mark.parametrize("key", ["", "a"])
def test_a_request_that_is_refused_once_is_published_in_parts(key: str) -> None:
    refused: list[int] = []

    def answer(messages: list[Any]) -> ConnectorError | None:
        if len(messages) == 100 and not refused:
            refused.append(1)
            return REFUSED
        return None

    service = Service(answer)
    publish(service, requests([key] * 300, rows_a_batch=100))
    assert sorted(service.rows(key)) == list(range(300))
    if key:
        assert service.rows(key) == list(range(300))


def test_what_is_under_way_is_cancelled_when_a_task_fails() -> None:
    started = threading.Event()

    def wait(_: list[Any]) -> None:
        assert started.wait(10)

    service = Service(lambda messages: DENIED if messages[0].data == b"0" else None, wait=wait)
    publisher = Publisher(service, LIMITS, "partition 0")  # type: ignore[arg-type]
    for request in requests([""] * 30):
        publisher.publish(request)
    started.set()
    with pytest.raises(AccessDeniedError):
        publisher.finish()
    publisher.discard()
    service.pool.shutdown()
    assert publisher._in_flight == set()
