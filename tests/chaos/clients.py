"""``./dev chaos clients``: clients that others wrote, beside each of our formats.

Kafka's own producer and consumer in Java, with each codec and with transactions; Amazon's KPL and boto3. What is done
stands in the record, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

from connectors.testing.kafka.broker import KafkaBroker
from connectors.testing.kinesis import KinesisServer
from connectors.testing.servers.kinesis_local import KinesisLocal
from tests.chaos.rigs import kafka_clients, kinesis_clients
from tests.chaos.support.record import Record
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials
from tests.support.kafka_rig import KafkaRig

PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "boto3")
PARTS = ("kafka", "kinesis")


def kafka_trials(told: argparse.Namespace, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """Both directions with each codec, on both paths; broker's times; killed tasks of exactly-once writes."""

    @cache
    def broker() -> KafkaBroker:
        return stack.enter_context(KafkaBroker())

    def trial(name: str, part: str, action: Any, **arguments: Any) -> Trial:
        def run(folder: Path) -> dict[str, Any]:
            return action(KafkaRig(broker(), folder), seed=record.trial_seed(name), **arguments)

        return Trial(name, part, run)

    for codec in kafka_clients.CODECS:
        for path in ("native", "plain"):
            both = {"codec": codec, "native": path == "native", "count": told.records}
            name = f"kafka-{codec}-{path}"
            read = partial(kafka_clients.producer_is_read, broker_time=path == "plain" and codec == "zstd")
            yield trial(f"{name}-read", "kafka_producer_read", read, **both)
            yield trial(f"{name}-written", "kafka_sink_consumed", kafka_clients.sink_is_consumed, **both)
    once = kafka_clients.exactly_once_is_consumed
    yield trial("kafka-exactly-once", "kafka_exactly_once_consumed", once, count=told.records // 10)


def kinesis_trials(told: argparse.Namespace, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """The KPL read in each mode, with and without aggregates; our sink read by others, from two servers."""

    def read(mode: str, *, aggregation: bool) -> Trial:
        name = f"kinesis-{mode}-{'aggregated' if aggregation else 'plain'}"
        seed = record.trial_seed(name)
        how = partial(kinesis_clients.producer_is_read, mode=mode, seed=seed, count=told.records)
        return Trial(name, "kinesis_producer_read", partial(how, aggregation=aggregation))

    for mode in kinesis_clients.MODES:
        for aggregation in (True, False):
            yield read(mode, aggregation=aggregation)

    @cache
    def url(server: str) -> str:
        return stack.enter_context(KinesisServer() if server == "ours" else KinesisLocal()).url

    def consume(consumer: str, server: str) -> Trial:
        name = f"kinesis-{consumer}-{server}"

        def run(_folder: Path) -> dict[str, Any]:
            how = kinesis_clients.CONSUMERS[consumer]
            return kinesis_clients.sink_is_consumed(url(server), how, record.trial_seed(name), told.records)

        return Trial(name, "kinesis_sink_consumed", run)

    for consumer in kinesis_clients.CONSUMERS:
        for server in ("ours", "kinesis_local"):
            yield consume(consumer, server)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos clients", description=__doc__)
    parser.add_argument("--records", type=int, default=3000, help="records of each trial (default: 3000)")
    parser.add_argument("--only", choices=PARTS, help="only this format")
    add_record_arguments(parser, "clients")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    told = parse(arguments)

    def trials(record: Record, stack: ExitStack) -> Iterator[Trial]:
        for name, made in (("kafka", kafka_trials), ("kinesis", kinesis_trials)):
            if told.only in {None, name}:
                yield from made(told, record, stack)

    return run_trials("clients", told, {"records": told.records}, PACKAGES, trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
