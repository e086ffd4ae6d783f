"""``./dev chaos clients``: clients that others wrote, beside each of our formats.

Kafka's producer and consumer in Java, with each codec and with transactions; Amazon's KPL, KCL and boto3; Google's
clients for Go and Python, with ordering keys and compression. Each producer is read by our source, and each consumer
reads what our sink has written. What is done stands in the record, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from connectors.testing.kinesis import KinesisServer
from connectors.testing.pubsub import PubSubServer
from tests.chaos.rigs import kafka_clients, kinesis_clients, pubsub_clients
from tests.chaos.support.other_servers import EMULATOR, KINESIS_LOCAL, MOTO, OtherServers
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.servers.kafka_broker import KafkaBroker
from tests.support.clients import client_versions
from tests.support.kafka_rig import KafkaRig

PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "boto3", "google-cloud-pubsub", "moto")


class Servers:
    """The servers of a run, each started when it is first needed.

    Args:
        stack: ends them.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._others = OtherServers(stack)

    @cached_property
    def kafka(self) -> KafkaBroker:
        """A broker."""
        return self._stack.enter_context(KafkaBroker())

    @cached_property
    def spark(self) -> SparkJobs:
        """A Spark process."""
        return self._stack.enter_context(SparkJobs(self._stack.enter_context(temporary_folder("jobs"))))

    @cached_property
    def kinesis(self) -> dict[str, str]:
        """The URLs of our server and of kinesis-local."""
        ours = self._stack.enter_context(KinesisServer())
        return {"ours": ours.url, "kinesis_local": f"http://{self._others.endpoint(KINESIS_LOCAL)}"}

    @cached_property
    def dynamo(self) -> str:
        """The URL of a DynamoDB, for the leases of the KCL."""
        return f"http://{self._others.endpoint(MOTO)}"

    @cached_property
    def pubsub(self) -> dict[str, str]:
        """The endpoints of our server and of Google's emulator."""
        ours = self._stack.enter_context(PubSubServer())
        return {"ours": ours.endpoint, "emulator": self._others.endpoint(EMULATOR)}


Action = Callable[..., dict[str, Any]]
"""What a trial does with a folder, the ``seed`` and the ``count`` of records."""


def kafka_trials(servers: Servers) -> Iterator[tuple[str, str, Action]]:
    """Both directions with each codec, on both paths; broker's times; killed tasks of exactly-once writes."""

    def on_broker(action: Action, **arguments: Any) -> Action:
        return lambda folder, **given: action(KafkaRig(servers.kafka, folder), **arguments, **given)

    for codec in kafka_clients.CODECS:
        for path in ("native", "plain"):
            how = {"codec": codec, "native": path == "native"}
            broker_time = codec == "zstd" and path == "plain"
            read = on_broker(kafka_clients.producer_is_read, broker_time=broker_time, **how)
            yield f"kafka-{codec}-{path}-read", "kafka_producer_read", read
            written = on_broker(kafka_clients.sink_is_consumed, **how)
            yield f"kafka-{codec}-{path}-written", "kafka_sink_consumed", written

    def between(folder: Path, **given: int) -> dict[str, Any]:
        return kafka_clients.spark_in_between(KafkaRig(servers.kafka, folder), servers.spark, **given)

    yield "kafka-spark", "kafka_spark_in_between", between
    yield "kafka-exactly-once", "kafka_exactly_once_consumed", on_broker(kafka_clients.exactly_once_is_consumed)


def kinesis_trials(servers: Servers) -> Iterator[tuple[str, str, Action]]:
    """The KPL read in each mode, with and without aggregates; our sink read by others, from two servers."""

    def consumed(consumer: str, server: str) -> Action:
        action = kinesis_clients.sink_is_consumed
        return lambda _, **given: action(servers.kinesis[server], servers.dynamo, consumer, **given)

    for mode in kinesis_clients.MODES:
        for kind in ("aggregated", "plain"):
            read = partial(kinesis_clients.producer_is_read, mode=mode, aggregation=kind == "aggregated")
            yield f"kinesis-{mode}-{kind}", "kinesis_producer_read", read
    alike = kinesis_clients.aggregates_are_read_alike
    yield "kinesis-kpl-kcl", "kinesis_read_alike", lambda folder, **given: alike(folder, servers.dynamo, **given)
    for consumer in kinesis_clients.CONSUMERS:
        for server in ("ours", "kinesis_local"):
            yield f"kinesis-{consumer}-{server}", "kinesis_sink_consumed", consumed(consumer, server)


def pubsub_trials(servers: Servers) -> Iterator[tuple[str, str, Action]]:
    """Both directions, with our server and with Google's emulator."""

    def read(server: str, *, compression: bool) -> Action:
        action = partial(pubsub_clients.producer_is_read, compression=compression)
        return lambda folder, **given: action(folder, servers.pubsub[server], **given)

    def received(consumer: str, server: str) -> Action:
        return lambda _, **given: pubsub_clients.sink_is_received(servers.pubsub[server], consumer, **given)

    for server in ("ours", "emulator"):
        for kind in ("compressed", "plain"):
            name = f"pubsub-go-{kind}-{server}"
            yield name, "pubsub_producer_read", read(server, compression=kind == "compressed")
        for consumer in pubsub_clients.CONSUMERS:
            yield f"pubsub-{consumer}-{server}", "pubsub_sink_received", received(consumer, server)


PARTS = {"kafka": kafka_trials, "kinesis": kinesis_trials, "pubsub": pubsub_trials}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos clients", description=__doc__)
    parser.add_argument("--records", type=int, default=5000, help="records of each trial (default: 5000)")
    parser.add_argument("--only", choices=PARTS, help="only this format")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so many minutes")
    add_record_arguments(parser, "clients")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`."""
    command_line = parse(arguments)
    end = time.monotonic() + command_line.minutes * 60

    def trials(record: Record, stack: ExitStack) -> Iterator[Trial]:
        servers = Servers(stack)
        for part in [command_line.only] if command_line.only else PARTS:
            for name, kind, action in PARTS[part](servers):
                if time.monotonic() < end:
                    given = {"seed": record.trial_seed(name), "count": command_line.records}
                    yield Trial(name, kind, partial(action, **given))

    settings = {"records": command_line.records, "clients": client_versions()}
    return run_trials("clients", command_line, settings, PACKAGES, trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
