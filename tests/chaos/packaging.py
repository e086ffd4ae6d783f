"""``./dev chaos packaging``: both distributions are built, looked into, installed into empty environments, and used.

The environments are those of each Python found here with the newest versions, and of the oldest with the lower bounds.
In each, ``connectors doctor`` must be content, and a first stream must bring each message once. ``./dev release`` makes
the files of a release.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

import connectors
from tests.chaos.rigs import wheels
from tests.chaos.support.record import Record
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder
from tools.release.build import Built, build, files_of_wheel
from tools.release.checks import faults
from tools.release.commands import run
from tools.release.records import bill_of_materials
from tools.release.trial import everything, faults_of_installs

PACKAGES = ("hatchling", "uv", "pyspark")
# What a strict type checker must see of an installed pack; without py.typed it would see nothing.
TYPED = """
from pyspark.sql import SparkSession
from connectors import register
from connectors.core.errors import ConnectorError

def start(spark: SparkSession) -> str:
    register(spark)
    return ConnectorError("A", "b", "c", "d").code
"""


def outcome(found: list[str], **details: Any) -> dict[str, Any]:
    """What the record says of a trial."""
    return {"ok": not found, "faults": found, **details}


def contents(folder: Path, built: Built) -> dict[str, Any]:
    """Wheels and sdists hold the tree, and nothing else."""
    found = faults(built)
    found += faults_of_installs(folder, built, connectors.__version__)
    files = {name: len(files_of_wheel(wheel)) for name, wheel in built.wheels.items()}
    return outcome(found, counts={"files": sum(files.values())}, files=files)


def materials(folder: Path, built: Built) -> dict[str, Any]:
    """The bill of materials names what is installed, each with a license; and the pack is typed for others."""
    environment = everything(folder, built, sys.executable, wheels.constraints_of("newest"))
    bill = bill_of_materials(environment, folder / "bill.json", connectors.__version__)
    listed = json.loads(
        run(sys.executable, "-m", "uv", "pip", "list", "--format", "json", "--python", environment.python)
    )
    own = {"pyspark-stream-connectors"}  # what the bill is of
    installed = {canonicalize_name(each["name"]) for each in listed} - own
    named = {canonicalize_name(each["name"]) for each in bill["components"]} - own
    found = [f"{name} is in the bill or installed, not both" for name in sorted(installed ^ named)]
    found += [f"{each['name']} has no license" for each in bill["components"] if not each["licenses"]]
    (folder / "typed.py").write_text(TYPED)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "cache", "--python-executable")
    run(*mypy, environment.python, folder / "typed.py", cwd=folder)
    return outcome(found, counts={"components": len(named)})


def install_and_use(folder: Path, built: Built, python: str, lock: str) -> dict[str, Any]:
    """An empty environment has what it needs after one install, and the first job does what the README says."""
    environment = everything(folder, built, python, wheels.constraints_of(lock))
    findings = json.loads(environment.run("-m", "connectors.cli", "doctor", "--json"))
    found = wheels.job_of(environment)
    bad = [f"doctor: {each['found']}" for each in findings["findings"] if each["outcome"] == "failed"]
    bad += [f"{found[kind]} messages {kind}" for kind in ("lost", "doubled") if found[kind]]
    counts = {"messages": found["published"], "lost": found["lost"], "doubled": found["doubled"]}
    return outcome(bad, counts=counts, installed=found["versions"])


def trials(command_line: argparse.Namespace, stack: ExitStack) -> Iterator[Trial]:
    """The trials of the parts that were asked for; what they share is built with the first that needs it."""

    @cache
    def built() -> Built:
        return build(stack.enter_context(temporary_folder("dist")))

    found = wheels.pythons()
    if command_line.only != "environments":
        yield Trial("contents", "distributions", lambda folder: contents(folder, built()))
        yield Trial("bill-of-materials", "distributions", lambda folder: materials(folder, built()))
    if command_line.only == "distributions":
        return
    for version, lock in [*((version, "newest") for version in found), (next(iter(found)), "lowest")]:
        name = f"python-{version}-{lock}"
        action = partial(install_and_use, python=found[version], lock=lock)
        yield Trial(name, "environments", lambda folder, action=action: action(folder, built()))


def main(arguments: list[str]) -> int:
    """Run it; see `run_trials` for what it returns."""
    parser = argparse.ArgumentParser(prog="./dev chaos packaging", description=__doc__)
    parser.add_argument("--only", choices=("distributions", "environments"), help="one part of it")
    add_record_arguments(parser, "packaging")
    command_line = parser.parse_args(arguments)
    settings = {"pythons": sorted(wheels.pythons())}

    def asked_for(_record: Record, stack: ExitStack) -> Iterator[Trial]:
        return trials(command_line, stack)

    return run_trials("packaging", command_line, settings, PACKAGES, asked_for)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
