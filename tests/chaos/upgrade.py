"""``./dev chaos upgrade``: a batch that an older version left half done is finished by this one.

A Spark application with the code of the commit that recorded the golden states runs a query, and is killed within a
batch; the present code goes on from its checkpoint and spool. Downgrades are not promised, and not run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from connectors.testing.kinesis import start_server_process as start_kinesis
from connectors.testing.pubsub import start_server_process as start_pubsub
from tests.chaos.rigs.pubsub_sweep import own_object_store
from tests.chaos.rigs.upgrades import Flow, KafkaFlow, KinesisFlow, PubSubFlow, upgrade
from tests.chaos.rigs.versions import PRESENT, VersionMissingError, check_out
from tests.chaos.support.record import ROOT, Record, code_digest
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.servers.kafka_broker import KafkaBroker
from tests.support.kafka_rig import KafkaRig

PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "grpcio", "boto3", "obstore")
GOLDEN = "632058e97dc3db94a4e58f83b52d03947b3f5eb2"
"""The commit that recorded `tests/golden/states/0.1.0`."""
CONNECTORS = ("kafka", "kinesis", "protobuf", "pubsub")


def pubsub(folder: Path, stack: ExitStack, *, is_object_store: bool) -> Flow:
    """Return a query from Pub/Sub."""
    server = stack.enter_context(start_pubsub())
    spool = own_object_store(stack) if is_object_store else None
    return PubSubFlow(folder, server, server.endpoint, spool)


def kinesis(folder: Path, stack: ExitStack, *, is_fan_out: bool) -> Flow:
    """Return a query from Kinesis."""
    server = stack.enter_context(start_kinesis(call_limit=0))
    server.set_takeover(0)
    return KinesisFlow(folder, server, is_fan_out=is_fan_out)


def kafka(folder: Path, stack: ExitStack, held_at: str) -> Flow:
    """Return an exactly-once query from Kafka to Kafka."""
    return KafkaFlow(folder, KafkaRig(stack.enter_context(KafkaBroker()), folder), held_at)


FLOWS: dict[str, Callable[[Path, ExitStack], Flow]] = {
    "pubsub-folder": partial(pubsub, is_object_store=False),
    "pubsub-object-store": partial(pubsub, is_object_store=True),
    "kinesis-polling": partial(kinesis, is_fan_out=False),
    "kinesis-fan-out": partial(kinesis, is_fan_out=True),
    "kafka-rows-sent": partial(kafka, held_at="kafka.rows_sent"),
    "kafka-committed": partial(kafka, held_at="kafka.committed"),
}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos upgrade", description=__doc__)
    parser.add_argument("--commit", default=GOLDEN, help="of the older version (default: that of the golden states)")
    parser.add_argument("--only", choices=FLOWS, help="only this trial")
    add_record_arguments(parser, "upgrade")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`, or 2 without the older version."""
    command_line = parse(arguments)
    settings = {"from": command_line.commit, "connectors": code_digest(ROOT / "connectors", CONNECTORS)}
    with temporary_folder("version") as code:
        try:
            older = check_out(command_line.commit, code)
        except VersionMissingError as error:
            print(error)
            return 2
        assert older.imported_from(code.parent) == code / "connectors"

        def run(folder: Path, make: Callable[[Path, ExitStack], Flow]) -> dict[str, Any]:
            with ExitStack() as stack:
                flow = make(folder / folder.name, stack)
                return {"killed_at": ["within a batch"], **upgrade(flow, folder, older, PRESENT)}

        def trials(_record: Record, _stack: ExitStack) -> Iterator[Trial]:
            for name, make in FLOWS.items():
                if command_line.only in {None, name}:
                    yield Trial(name, f"{name.partition('-')[0]}_upgrade", partial(run, make=make))

        return run_trials("upgrade", command_line, settings, PACKAGES, trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
