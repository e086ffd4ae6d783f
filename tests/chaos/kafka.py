"""``./dev chaos kafka``: random kills of an exactly-once query from Kafka to Kafka.

Each trial has topics of its own, and some kills of workers, source process, JVM and driver while its records pass; at
least one of each trial is of the JVM. What is done stands in the record, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from uuid import uuid4

from connectors.testing.kafka_broker import KafkaBroker
from tests.chaos._kafka_kills import KillPlan, KillTrial
from tests.chaos._record import ROOT, Record, RecordMismatchError
from tests.chaos._spark import SparkJobs
from tests.chaos.pubsub import Trial, run_trial, temporary_folder
from tests.kafka_rig import KafkaRig
from tests.processes import RUN_MARK, orphans

PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "numpy")
_ORPHAN_SECONDS = 10.0
_TERMINATED = 143


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos kafka", description=__doc__)
    parser.add_argument("--trials", type=int, default=20, help="trials in all (default: 20)")
    parser.add_argument("--kills", type=int, default=5, help="kills of each (default: 5)")
    parser.add_argument("--records", type=int, default=5000, help="records of each (default: 5000)")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so many minutes")
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "faults" / "kafka.json", help="its file")
    parser.add_argument("--fresh", action="store_true", help="begin anew instead of going on from the record")
    parser.add_argument("--seed", type=int, help="of a new record (default: a random one)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; 1 if any trial of the record failed, 2 if the record cannot be gone on from."""
    told = parse(arguments)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    os.environ[RUN_MARK] = mark = uuid4().hex
    settings = {"kills": told.kills, "records": told.records}
    try:
        record = Record(told.record, "kafka", settings, PACKAGES, fresh=told.fresh, seed=told.seed)
    except RecordMismatchError as error:
        print(error)
        return 2
    names = [f"kill-{number:03d}" for number in range(1, told.trials + 1)]
    open_names = [name for name in names if not record.done(name)]
    print(f"seed {record.seed}, {len(names) - len(open_names)} trials done before", flush=True)
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        jobs = stack.enter_context(SparkJobs(stack.enter_context(temporary_folder("jobs"))))

        def trial(folder: Path, plan: KillPlan) -> dict[str, object]:
            try:
                return KillTrial(plan, folder / folder.name, KafkaRig(broker, folder), jobs).run()
            except BaseException:
                jobs.discard()
                raise

        for name in open_names:
            if time.monotonic() - began > told.minutes * 60:
                break
            plan = KillPlan.make(record.trial_seed(name), told.kills, told.records)
            run_trial(record, Trial(name, "exactly_once", partial(trial, plan=plan)))
    print(json.dumps(record.summary, indent=1))
    end = time.monotonic() + _ORPHAN_SECONDS
    while (left := orphans(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    if left:
        print(f"processes left behind: {left}")
    if record.failed:
        print(f"failed: {', '.join(record.failed)}")
    return 1 if record.failed or left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
