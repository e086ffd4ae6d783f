"""``./dev chaos versions``: kills, and a checkpoint that moves, on each version of Spark.

On the newest Spark of 4.0, 4.1, 4.2 and 4.3: random kills of JVM, driver, source process, fetchers and workers
while each source is read, and while Kafka is copied to Kafka exactly once. Then one checkpoint of each goes from 4.0 up
to 4.3 and down again, with a kill within a batch before each move. What is done stands in the record, and a run that
was stopped continues from there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from connectors.testing.kinesis import start_server_process as start_kinesis
from connectors.testing.pubsub import start_server_process as start_pubsub
from tests.chaos.rigs import kafka_kills, kinesis_kills, pubsub_kills
from tests.chaos.rigs.spark_moves import KafkaRowsFlow, move
from tests.chaos.rigs.upgrades import Flow, KafkaFlow, KinesisFlow, PubSubFlow
from tests.chaos.rigs.versions import SPARKS, on_spark
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.servers.kafka_broker import KafkaBroker
from tests.support.kafka_rig import KafkaRig

PACKAGES = ("pyarrow", "confluent-kafka", "grpcio", "boto3")
"""Without Spark: each trial names its own."""
KILLS = 4
"""Of a trial."""
MESSAGES = 2000
WAY = (*SPARKS, *reversed(SPARKS[:-1]))
"""Of the checkpoint: up, and down again."""

version = cache(on_spark)


class Servers:
    """The services of all trials, each started with the first trial that needs it.

    Args:
        stack: ends them.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    @cached_property
    def pubsub(self) -> Any:
        """Our Pub/Sub server."""
        return self._stack.enter_context(start_pubsub(event_limit=0))

    @cached_property
    def kinesis(self) -> Any:
        """Our Kinesis server."""
        return self._stack.enter_context(start_kinesis(call_limit=0))

    @cached_property
    def kafka(self) -> KafkaBroker:
        """A real broker."""
        return self._stack.enter_context(KafkaBroker())


def kill_pubsub(servers: Servers, jobs: SparkJobs, folder: Path, seed: int, number: int) -> dict[str, Any]:
    """Kill a query from Pub/Sub."""
    victims = (*pubsub_kills.VICTIMS, pubsub_kills.DRIVERS[number % len(pubsub_kills.DRIVERS)])
    plan = pubsub_kills.KillPlan.make(seed, victims, MESSAGES)
    return pubsub_kills.KillTrial(plan, folder, servers.pubsub, servers.pubsub.endpoint, jobs).run()


def kill_kinesis(
    servers: Servers, jobs: SparkJobs, folder: Path, seed: int, number: int, *, mode: str
) -> dict[str, Any]:
    """Kill a query from Kinesis."""
    plan = kinesis_kills.KillPlan.make(seed, mode, number, KILLS)
    return kinesis_kills.KillTrial(plan, folder, servers.kinesis.endpoint, jobs).run()


def kill_kafka(
    servers: Servers, jobs: SparkJobs, folder: Path, seed: int, number: int, *, trial: type[kafka_kills.KillTrial]
) -> dict[str, Any]:
    """Kill a query from Kafka."""
    del number  # victims follow from the seed alone
    plan = kafka_kills.KillPlan.make(seed, KILLS, MESSAGES)
    return trial(plan, folder, KafkaRig(servers.kafka, folder), jobs).run()


KILLERS: dict[str, Callable[[Servers, SparkJobs, Path, int, int], dict[str, Any]]] = {
    "pubsub": kill_pubsub,
    "kinesis-polling": partial(kill_kinesis, mode="polling"),
    "kinesis-fan-out": partial(kill_kinesis, mode="efo"),
    "kafka": partial(kill_kafka, trial=kafka_kills.RowsTrial),
    "kafka-exactly-once": partial(kill_kafka, trial=kafka_kills.KillTrial),
}


def flow(name: str, servers: Servers, folder: Path) -> Flow:
    """Return the query whose checkpoint moves."""
    match name:
        case "pubsub":
            return PubSubFlow(folder, servers.pubsub, servers.pubsub.endpoint)
        case "kinesis-polling" | "kinesis-fan-out":
            servers.kinesis.set_takeover(0)
            return KinesisFlow(folder, servers.kinesis, is_fan_out=name == "kinesis-fan-out")
        case "kafka":
            return KafkaRowsFlow(folder, KafkaRig(servers.kafka, folder))
        case _:
            return KafkaFlow(folder, KafkaRig(servers.kafka, folder), held_at="kafka.rows_sent")


def kills(command_line: argparse.Namespace, record: Record, servers: Servers, spark: str) -> Iterator[Trial]:
    """The kills on one version of Spark, whose processes end with the last of them."""
    with ExitStack() as stack:
        started: list[SparkJobs] = []

        def run(folder: Path, name: str, number: int, seed: int) -> dict[str, Any]:
            if not started:
                place = stack.enter_context(temporary_folder("jobs"))
                started.append(stack.enter_context(SparkJobs(place, environment=version(spark).environment)))
            [jobs] = started
            try:
                ran = jobs.current.version()
                assert ran.startswith(f"{spark}."), f"Spark {ran} instead of {spark}"
                outcome = KILLERS[name](servers, jobs, folder / folder.name, seed, number)
            except BaseException:
                jobs.discard()
                raise
            return {"spark": ran, "flow": name, **outcome}

        for number in range(-(-command_line.kills // KILLS)):
            for name in command_line.flow or KILLERS:
                trial = f"{name}-spark-{spark}-{number + 1:02d}"
                action = partial(run, name=name, number=number, seed=record.trial_seed(trial))
                yield Trial(trial, f"{name}-spark-{spark}", action)


def moves(command_line: argparse.Namespace, servers: Servers) -> Iterator[Trial]:
    """The checkpoints that move."""

    def run(folder: Path, name: str) -> dict[str, Any]:
        stations = [version(spark) for spark in WAY]
        return {"flow": name, **move(flow(name, servers, folder / folder.name), folder, stations)}

    for name in command_line.flow or KILLERS:
        yield Trial(f"{name}-moves", f"{name}-moves", partial(run, name=name))


def trials(command_line: argparse.Namespace, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """The trials that are asked for, until the time is over."""
    end = time.monotonic() + command_line.minutes * 60
    servers = Servers(stack)
    asked = [
        kills(command_line, record, servers, spark)
        for spark in command_line.version or SPARKS
        if command_line.only != "moves"
    ]
    for trial in (
        each
        for part in (*asked, *([moves(command_line, servers)] if command_line.only != "kills" else []))
        for each in part
    ):
        if time.monotonic() > end:
            return
        yield trial


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos versions", description=__doc__)
    parser.add_argument("--version", choices=SPARKS, action="append", help="only kills on this one; may be repeated")
    parser.add_argument("--flow", choices=KILLERS, action="append", help="only this flow; may be repeated")
    parser.add_argument("--only", choices=("kills", "moves"), help="only this part")
    parser.add_argument(
        "--kills", type=int, default=20, help=f"of each flow on each version, {KILLS} a trial (default: 20)"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so many minutes")
    add_record_arguments(parser, "versions")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)
    return run_trials(
        "versions", command_line, {"messages": MESSAGES, "kills": KILLS}, PACKAGES, partial(trials, command_line)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
