"""The example of a source of one's own: SIGKILL at random moments loses and doubles nothing, and replays are equal.

By the protocol driver, which compares each batch that runs again with its first attempt, row by row.
"""

from __future__ import annotations

import os
import random
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import SourceGoneError
from connectors.spool import stats
from tests.support.spark_protocol.driver import (
    STEPS,
    DriverCrashedError,
    FolderSink,
    ReaderFailedError,
    StreamingQuery,
    TaskWorkers,
    descendants,
)
from tests.support.sqs_rig import EXAMPLES, KEYS, TestQueue, moto_server
from tests.support.waiting import wait_for

SOURCE = "sqs_source:SqsDataSource"
PORTION = 70  # is sent before each kill
GROUPS = 3


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(scope="module", autouse=True)
def example() -> Iterator[None]:
    """The example is found by this process and those that it starts, which have keys that moto takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        for name, value in KEYS.items():
            patch.setenv(name, value)
        yield


def strike(query: StreamingQuery, queue: TestQueue, victim: str, choose: random.Random) -> None:
    """Kill a process of the query where it is now, and go on as Spark and an operator would."""
    if victim == "fetcher":
        fetchers = wait_for(lambda: descendants(query.reader.pid))
        os.kill(choose.choice(sorted(fetchers)), signal.SIGKILL)
    elif victim == "reader":
        query.kill()
        query.restart()
    else:
        query.crash_at(choose.choice(STEPS))
        queue.send(10)  # a batch comes for certain
        with pytest.raises(DriverCrashedError):
            query.run_batch(60.0)
        query.restart()


def groups_out_of_order(sink: FolderSink) -> list[str]:
    """The groups whose messages are not in the order in which they were sent; each has some."""
    bodies = defaultdict[str, list[int]](list)
    for group, body in zip(sink.values("messageGroupId"), sink.values("body"), strict=True):
        bodies[group].append(int(body))
    assert len(bodies) == GROUPS
    return [group for group, numbers in bodies.items() if numbers != sorted(numbers)]


@pytest.mark.guarantee
@pytest.mark.parametrize("groups", [0, GROUPS], ids=["standard", "fifo"])
def test_random_kills_lose_and_double_nothing(
    groups: int, endpoint: str, tmp_path: Path, workers: TaskWorkers, seed: int
) -> None:
    choose = random.Random(seed)
    victims = [
        *choose.sample(("fetcher", "reader", "driver"), 3),
        *choose.choices(("fetcher", "reader", "driver"), k=3),
    ]
    queue = TestQueue(endpoint, f"kills-{groups}{'.fifo' if groups else ''}", groups)
    sink = FolderSink(tmp_path / "sink")
    options = queue.options(tmp_path, maxRecordsPerTrigger="40", partitionBytes="60")
    # One fetcher dies between the segment and the deletes, so that what is durable is delivered again in each run.
    failpoints = f"fetcher/fetch.after_publish_before_ack=kill_once:{tmp_path / 'died'}:{choose.randint(1, 3)}"
    with StreamingQuery(
        SOURCE,
        options,
        checkpoint=tmp_path / "checkpoint",
        sink=sink,
        workers=workers,
        reader_environment={"CONNECTORS_FAILPOINTS": failpoints},
    ) as query:
        for number, victim in enumerate(victims, 1):
            queue.send(PORTION)
            rows = choose.randint((number - 1) * PORTION, number * PORTION - 1)
            query.run_until(lambda _, rows=rows: sink.rows() >= rows, 60.0)
            strike(query, queue, victim, choose)
        query.run_until(lambda _: sink.rows() >= len(queue.ids), 60.0)
        wait_for(lambda: queue.left() == 0)
        query.process_available()
    found = sink.lost_and_doubled(queue.ids, "messageId")
    assert (found.lost, found.doubled) == ([], []), victims
    assert sink.values("offset") == list(range(len(queue.ids)))
    if groups:
        assert groups_out_of_order(sink) == []
    counts = stats(options["spoolLocation"])
    assert counts.duplicates > 0
    assert counts.delivered == len(queue.ids) + counts.duplicates


def test_the_rows_of_a_fifo_queue_have_the_order_of_its_groups(
    endpoint: str, tmp_path: Path, workers: TaskWorkers
) -> None:
    queue = TestQueue(endpoint, "order.fifo", GROUPS)
    sink = FolderSink(tmp_path / "sink")
    options = queue.options(tmp_path, fetchers="4", visibilityTimeout="60s")  # one fetches, whatever is asked for
    with StreamingQuery(SOURCE, options, checkpoint=tmp_path / "checkpoint", sink=sink, workers=workers) as query:
        for _ in range(3):
            queue.send(50)
            query.run_until(lambda _: sink.rows() >= len(queue.ids), 60.0)
        assert len(descendants(query.reader.pid)) == 1
    assert groups_out_of_order(sink) == []
    assert sink.rows() == 150


def test_the_queue_of_these_tests_gives_the_messages_of_a_group_in_order_again(endpoint: str) -> None:
    queue = TestQueue(endpoint, "again.fifo", 2)
    queue.send(6)
    everything = list("012345")
    assert (queue.receive(3), queue.receive(3)) == (everything, [])
    queue.send(2)  # they wait for those before
    again = list[str]()

    def receive_again() -> bool:
        again.extend(queue.receive(60))  # the groups become visible one after the other
        return len(again) >= len(everything) + 2

    wait_for(receive_again)
    assert [[body for body in again if int(body) % 2 == group] for group in (0, 1)] == [list("0246"), list("1357")]


def test_messages_are_held_for_longer_than_their_visibility_timeout_while_they_are_not_durable(
    endpoint: str, tmp_path: Path, workers: TaskWorkers
) -> None:
    queue = TestQueue(endpoint, "held")
    sink = FolderSink(tmp_path / "sink")
    options = queue.options(tmp_path, maxFetchPeriod="8s", fetchers="2")  # longer than two visibility timeouts
    with StreamingQuery(SOURCE, options, checkpoint=tmp_path / "checkpoint", sink=sink, workers=workers) as query:
        queue.send(30)
        query.run_until(lambda _: sink.rows() >= 30, 60.0)
        wait_for(lambda: queue.left() == 0)
    counts = stats(options["spoolLocation"])
    assert (counts.delivered, counts.duplicates) == (30, 0)


def test_a_queue_that_is_gone_ends_the_query_with_a_named_error(
    endpoint: str, tmp_path: Path, workers: TaskWorkers
) -> None:
    options = TestQueue(endpoint, "there").options(tmp_path)
    options["queueUrl"] = options["queueUrl"].replace("there", "gone")
    with (
        StreamingQuery(SOURCE, options, checkpoint=tmp_path / "checkpoint", workers=workers) as query,
        pytest.raises(ReaderFailedError, match=rf"{SourceGoneError.__name__}.*SQS_CALL_FAILED"),
    ):
        query.run_batch()
