"""``./dev chaos peers``: kills and splits against awslabs' Kinesis connector and ours, on one server, of one seed.

Each trial runs ours and then theirs, on the oldest Spark that both run on, against the server of `connectors.testing`
in JSON. `split_before`, `split_while_read` and `empty_data` kill nothing. In `kills` the JVM or the whole driver is
killed at random moments, while records come; in `kills_and_splits` shards are split and merged too. No call fails. A
trial fails when ours is
wrong; what theirs lost or doubled stands beside it. The peer is built by Maven from the source of one commit, which
`KINESIS_PEER_SOURCE` may name another place of; where it cannot be had, nothing runs, and why is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from connectors.testing.kinesis import start_server_process
from tests.chaos.rigs.peer_trial import PARTS, SIDES, THEIRS, PeerPlan, PeerTrial, peer_settings, together
from tests.chaos.rigs.versions import on_spark
from tests.chaos.support.record import Record
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tests.support.kinesis_peer import COMMIT, SPARK, Peer, build_peer

PACKAGES = ("pyarrow", "boto3", "msgspec")


def trials(told: argparse.Namespace, peer: Peer, record: Record, stack: ExitStack) -> Iterator[Trial]:
    """Yield all trials; server and Spark start with the first of them."""
    started: list[Any] = []

    def run(folder: Path, plan: PeerPlan) -> dict[str, Any]:
        if not started:
            python = on_spark(SPARK)
            made = {
                side: SparkJobs(
                    stack.enter_context(temporary_folder(f"jobs-{side}")),
                    settings=peer_settings(peer.jar) if side == THEIRS else {},
                    environment=python.environment,
                )
                for side in SIDES
            }
            started.extend((stack.enter_context(start_server_process(call_limit=0)), made))
            for jobs in made.values():
                stack.enter_context(jobs)
        server, jobs_of = started
        found = {}
        for side in SIDES:
            try:
                found[side] = PeerTrial(side, plan, folder / folder.name / side, server.endpoint, jobs_of[side]).run()
            except BaseException:
                jobs_of[side].discard()
                raise
        return together(found)

    for part in told.part or PARTS:
        kills = told.kills if part.startswith("kills") else 0
        for number in range(told.trials if kills else 1):
            name = f"{part}-{number + 1:03d}"
            yield Trial(name, part, partial(run, plan=PeerPlan(record.trial_seed(name), part, kills)))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos peers", description=__doc__)
    parser.add_argument("--part", choices=list(PARTS), action="append", help="only this part; may be repeated")
    parser.add_argument("--trials", type=int, default=4, help="of each part with kills (default: 4)")
    parser.add_argument("--kills", type=int, default=5, help="of a trial (default: 5)")
    add_record_arguments(parser, "peers")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is not done yet; the exit code is that of `run_trials`, or 3 where the peer cannot be had."""
    told = parse(arguments)
    peer = build_peer()
    if peer.reason:
        print(f"skipped: {peer.reason}")
        return 3
    settings = {"kills": told.kills, "peer": COMMIT, "sdk": peer.sdk, "spark": SPARK}
    return run_trials("peers", told, settings, PACKAGES, partial(trials, told, peer))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
