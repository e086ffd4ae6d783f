"""Consumers of enhanced fan-out: registered, reused, waited for, and what stops a query."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from connectors.core.errors import ConnectorError, OptionError
from connectors.core.retry import OutageRule, wait_out
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.fan_out.consumers import StreamConsumers, active_consumer
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.source.shard_monitor import Job, Scheduler
from tests.support.kinesis_efo import Efo
from tests.support.kinesis_rig import HASTY_SOURCE, PATIENCE, wait_until
from tests.support.spark_protocol.driver import (
    ReaderFailedError,
    descendants,
    is_running,
)

# Consumers


def _client(efo: Efo) -> tuple[KinesisClient, str]:
    client = KinesisClient(parse_read_options(efo.rig.options(), {}))
    return client, client.describe(efo.rig.stream)["StreamARN"]


def _consumer(efo: Efo, name: str = "consumer", *, register: bool = True, timeout: float = PATIENCE) -> str:
    """The ARN of a consumer, once it is ACTIVE."""
    client, arn = _client(efo)
    return wait_out(lambda: active_consumer(client, arn, name, register=register), OutageRule(timeout, cap_seconds=2.0))


def test_25_a_consumer_is_registered_where_it_is_missing_and_then_reused(efo: Efo) -> None:
    found = _consumer(efo)
    assert _consumer(efo) == found == _consumer(efo, found, register=False)
    assert efo.rig.server.call_counts(efo.rig.stream)["RegisterStreamConsumer"] == 1


def test_25_a_consumer_in_creation_is_waited_for(efo: Efo) -> None:
    efo.rig.server.set_transition(0.5)
    begin = time.monotonic()
    found = _consumer(efo)
    assert time.monotonic() - begin >= 0.5
    client, _ = _client(efo)
    described = client.call("describe_stream_consumer", "", ConsumerARN=found)["ConsumerDescription"]
    assert described["ConsumerStatus"] == "ACTIVE"


def test_25_a_consumer_that_is_being_removed_is_made_anew(efo: Efo) -> None:
    before = _consumer(efo)
    efo.rig.server.set_transition(0.5)
    client, _ = _client(efo)
    client.call("deregister_stream_consumer", "", ConsumerARN=before)
    assert _consumer(efo) != before


def test_25_a_sixth_consumer_in_creation_is_tried_again(efo: Efo) -> None:
    client, arn = _client(efo)
    efo.rig.server.set_transition(1)
    for number in range(5):
        client.call("register_stream_consumer", "", StreamARN=arn, ConsumerName=f"other-{number}")
    assert "/consumer:" in _consumer(efo).replace("/consumer/", "/").replace("consumer:", "/consumer:")


def _others(efo: Efo, number: int) -> tuple[KinesisClient, list[str]]:
    """Register other consumers of the stream; their ARNs."""
    client, arn = _client(efo)
    made = [
        client.call("register_stream_consumer", "", StreamARN=arn, ConsumerName=f"other-{number}")
        for number in range(number)
    ]
    return client, [each["Consumer"]["ConsumerARN"] for each in made]


def test_a_stream_with_twenty_consumers_stops_the_query_at_once_by_name(efo: Efo) -> None:
    _others(efo, 20)
    begin = time.monotonic()
    with (
        efo.query() as query,
        pytest.raises(ReaderFailedError, match=r"KINESIS_CONSUMER_LIMIT.*20 registered") as raised,
    ):
        query.run_until(lambda _batches: False, PATIENCE)
    assert time.monotonic() - begin < PATIENCE / 2
    assert "minFetchPeriod" not in str(raised.value)
    assert "consumerARN" in str(raised.value)
    assert efo.rig.server.call_counts(efo.rig.stream)["RegisterStreamConsumer"] == 20 + 1


def test_a_place_that_becomes_free_is_waited_for(efo: Efo) -> None:
    client, arns = _others(efo, 20)
    efo.rig.server.set_transition(0.5)
    client.call("deregister_stream_consumer", "", ConsumerARN=arns[3])
    assert _consumer(efo, timeout=PATIENCE) not in arns


def test_a_full_stream_whose_consumers_may_not_be_listed_fails_by_name_after_a_while(efo: Efo) -> None:
    _others(efo, 20)
    efo.rig.server.fail("ListStreamConsumers", "AccessDeniedException", None)
    with (
        efo.query(source=HASTY_SOURCE) as query,
        pytest.raises(ReaderFailedError, match=r"KINESIS_CONSUMER_LIMIT.*20 registered consumers"),
    ):
        query.run_until(lambda _batches: False, PATIENCE)


def test_registering_too_often_is_throttling_and_is_tried_again(efo: Efo) -> None:
    efo.rig.server.fail("RegisterStreamConsumer", "LimitExceededException", 2, message="Rate exceeded for account 1.")
    client, arn = _client(efo)
    for _ in range(2):
        with pytest.raises(ConnectorError, match="KINESIS_THROTTLED") as raised:
            active_consumer(client, arn, "consumer", register=True)
        assert raised.value.transient
        assert "minFetchPeriod" not in str(raised.value)
    assert _consumer(efo)


def test_25_a_consumer_that_does_not_come_fails_by_name(efo: Efo) -> None:
    efo.rig.server.set_transition(600)
    with pytest.raises(ConnectorError, match="KINESIS_CONSUMER_NOT_ACTIVE"):
        _consumer(efo, timeout=0.5)
    with pytest.raises(OptionError, match="KINESIS_NO_CONSUMER"):
        _consumer(efo, "nobody", register=False)


def test_25_many_consumers_that_do_not_come_keep_no_thread_from_the_shards(efo: Efo) -> None:
    """There are sixteen threads for all that a source process asks; here is one."""
    efo.rig.server.set_transition(600)
    client, arn = _client(efo)
    options = replace(parse_read_options(efo.rig.options(**efo.options()), {}), register_seconds=5.0)
    failed: list[BaseException] = []
    found: list[str] = []
    looked = threading.Event()
    jobs = Scheduler(1, failed.append)
    consumers = StreamConsumers(options, client, jobs, found.append)
    try:
        consumers.want(arn, efo.rig.stream)
        wait_until(lambda: "RegisterStreamConsumer" in efo.rig.server.call_counts(efo.rig.stream))
        jobs.add(Job(looked.set))
        assert looked.wait(PATIENCE)
        assert failed == [], "it is waited for, and not done yet"
        wait_until(lambda: failed != [])
        assert [getattr(error, "code", None) for error in failed] == ["KINESIS_CONSUMER_NOT_ACTIVE"]
        efo.rig.server.jump(601)
        consumers.want(arn, efo.rig.stream)
        wait_until(lambda: found == [arn])
        assert consumers.arn(arn) == _consumer(efo, options.consumers[0])
    finally:
        jobs.stop()


def test_25_the_query_polls_until_its_consumer_is_active(efo: Efo) -> None:
    efo.rig.server.set_transition(600)
    values = efo.rig.put(10)
    with efo.query() as query:
        efo.rig.drain(query, values)
        assert efo.rig.server.subscriptions(efo.rig.stream) == []
        efo.rig.server.jump(601)
        efo.until_live(query)
        values += efo.rig.put(10)
        efo.rig.drain(query, values)


@pytest.mark.parametrize("asked", [False, True])
def test_25_a_consumer_is_deregistered_only_when_that_is_asked(efo: Efo, asked: bool) -> None:
    with efo.query(requireConsumerDeregistration=str(asked).lower()) as query:
        efo.until_live(query)
        children = descendants(query.reader.pid)
        query.kill()
        wait_until(lambda: not any(is_running(each) for each in children))

    def calls() -> int:
        return efo.rig.server.call_counts(efo.rig.stream).get("DeregisterStreamConsumer", 0)

    wait_until(lambda: calls() > 0 or not asked)  # the service may come to it when the processes have ended
    assert calls() == (1 if asked else 0)


def test_25_a_consumer_that_somebody_removes_is_made_anew(efo: Efo) -> None:
    with efo.query() as query:
        efo.until_live(query)
        (before,) = efo.rig.server.subscriptions(efo.rig.stream)
        client, _ = _client(efo)
        client.call("deregister_stream_consumer", "", ConsumerARN=before.consumer)
        values = efo.rig.put(10)
        efo.rig.drain(query, values)
        efo.until_live(query)
        (now,) = efo.rig.server.subscriptions(efo.rig.stream)
        assert now.consumer != before.consumer
        values += efo.rig.put(10)
        efo.rig.drain(query, values)


"""One for a stream: to make a client takes longer than to plan a batch."""


def test_a_consumer_of_another_stream_stops_the_query_before_it_brings_anything(efo: Efo) -> None:
    """By name the options do not say which account the stream is of."""
    options = efo.options(consumerARN=_consumer(efo, "mine"))
    del options["consumerName"]
    account = options["consumerARN"].split(":")[4]
    options["consumerARN"] = options["consumerARN"].replace(account, "999999999999")
    refused = pytest.raises(ReaderFailedError, match="OPTION_CONFLICT.*999999999999.*" + account)
    with efo.rig.query(**options) as query, refused:
        query.run_until(lambda _batches: False, PATIENCE)
    assert efo.rig.server.subscriptions(efo.rig.stream) == []


def test_a_consumer_that_was_registered_before_is_used_and_left(efo: Efo) -> None:
    arn = _consumer(efo, "before")
    options = efo.options(consumerARN=arn)
    del options["consumerName"]
    with efo.rig.query(**options) as query:
        efo.until_live(query)
        assert {each.consumer for each in efo.rig.server.subscriptions(efo.rig.stream)} == {arn}
        values = efo.rig.put(5)
        efo.rig.drain(query, values)
