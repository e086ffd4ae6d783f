"""Checks the place of a record's time with many versions of librdkafka: ``python -m tests.golden.librdkafka_record``.

It installs each version that `TIME_CHECKED` names, and lets it read two topics of a real broker: one has the times of
the producer, the other those of the broker. What stands at the private place is held against the public function, for
every record. `tests/unit/kafka/native/test_library.py` compares the record, librdkafka.json, with the list.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.kafka.native import NativeSource
from connectors.kafka.native.library import library_version
from connectors.kafka.native.reader import TIME_CHECKED, _private_times, _public_times
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import ClientSettings
from tests.servers.kafka_broker import KafkaBroker

RECORD: Final = Path(__file__).with_name("librdkafka.json")
RECORDS: Final = 1000
_TOPICS: Final = ("CreateTime", "LogAppendTime")
_ROOT: Final = Path(__file__).parents[2]


def compare_times(endpoint: str, topics: tuple[str, ...] = _TOPICS) -> dict[str, dict[str, int]]:
    """Read `RECORDS` of each topic; return by topic how many were read, their type of time, and how many differ."""
    found = {}
    for topic in topics:
        source = NativeSource(ClientSettings((("bootstrap.servers", endpoint),)), {"group.id": "times"})
        source.assign(TopicPartition(topic, 0), 0)
        counts = {"records": 0, "type": 0, "differ": 0}
        while counts["records"] < RECORDS:
            fetched = source.fetch(RECORDS, 10.0)
            if len(fetched) == 0:
                raise TimeoutError(f"{topic} ended after {counts['records']} records")
            private, public = _private_times(fetched.pointers), _public_times(fetched.pointers)
            counts["records"] += len(fetched)
            counts["type"] = int(public[1][0])
            counts["differ"] += int(((private[0] != public[0]) | (private[1] != public[1])).sum())
            fetched.free()
        source.close()
        found[topic] = counts
    return found


def check(version: str, endpoint: str) -> dict[str, Any]:
    """Run `compare_times` with a version of the client, which is installed into a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        install = ("uv", "pip", "install", "--quiet", "--no-deps", "--target", folder, f"confluent-kafka=={version}")
        subprocess.run([sys.executable, "-m", *install], check=True)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((folder, str(_ROOT)))}
        command = [sys.executable, "-m", "tests.golden.librdkafka_record", endpoint]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Write the record; with an endpoint, write the line of the client that this process has."""
    if len(sys.argv) > 1:
        json.dump({library_version(): compare_times(sys.argv[1])}, sys.stdout)
        return
    with KafkaBroker(fast=True) as broker:
        all_times = {"retention.ms": "-1", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
        made = [NewTopic(topic, 1, 1, config={"message.timestamp.type": topic} | all_times) for topic in _TOPICS]
        admin = AdminClient({"bootstrap.servers": broker.endpoint})
        for future in admin.create_topics(made).values():
            future.result(60)
        producer = Producer({"bootstrap.servers": broker.endpoint})
        times = np.random.default_rng(0).integers(1, 1 << 42, RECORDS).tolist()
        for topic in _TOPICS:
            for number, time in enumerate(times):
                producer.produce(topic, b"%d" % number, timestamp=time)
        producer.flush()
        found: dict[str, Any] = {}
        for version in sorted(TIME_CHECKED):
            found |= check(version, broker.endpoint)
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
