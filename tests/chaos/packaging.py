"""``./dev chaos packaging``: both distributions are built, looked into, installed into empty environments, and used.

The environments are those of each Python found here with the newest versions, and of the oldest with the lower bounds.
In each, ``connectors doctor`` must be content, and a first stream must bring each message once. The bill of materials
and the wheels are left in ``dist``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tests.chaos.rigs import wheels
from tests.chaos.support.record import ROOT, Record
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials, temporary_folder

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


def outcome(faults: list[str], **details: Any) -> dict[str, Any]:
    """What the record says of a trial."""
    return {"ok": not faults, "faults": faults, **details}


def contents(folder: Path, built: wheels.Built) -> dict[str, Any]:
    """Wheels and sdists hold the tree, and nothing else."""
    faults = []
    for name in built.wheels:
        faults += wheels.faults_of_wheel(name, built)
        (folder / name).mkdir()
        faults += wheels.faults_of_sdist(name, built, folder / name)
    files = {name: len(wheels.contents(wheel)) for name, wheel in built.wheels.items()}
    return outcome(faults, counts={"files": sum(files.values())}, files=files)


def materials(folder: Path, built: wheels.Built) -> dict[str, Any]:
    """The bill of materials names what is installed, each with a license; and the pack is typed for others."""
    environment = wheels.Environment(folder, sys.executable, built, wheels.constraints_of("newest"))
    bill = wheels.bill_of_materials(environment, folder / "bill.json")
    listed = json.loads(
        wheels.run(sys.executable, "-m", "uv", "pip", "list", "--format", "json", "--python", environment.python)
    )
    own = {"pyspark-stream-connectors"}  # what the bill is of
    installed = {canonicalize_name(each["name"]) for each in listed} - own
    named = {canonicalize_name(each["name"]) for each in bill["components"]} - own
    faults = [f"{name} is in the bill or installed, not both" for name in sorted(installed ^ named)]
    faults += [f"{each['name']} has no license" for each in bill["components"] if not each["licenses"]]
    (folder / "typed.py").write_text(TYPED)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "cache", "--python-executable")
    wheels.run(*mypy, environment.python, folder / "typed.py", cwd=folder)
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    name = built.wheels["pyspark_stream_connectors"].name.removesuffix("-py3-none-any.whl")
    shutil.copy(folder / "bill.json", dist / f"{name}.cdx.json")
    for path in (*built.wheels.values(), *built.sdists.values()):
        shutil.copy(path, dist)
    return outcome(faults, counts={"components": len(named)})


def install_and_use(folder: Path, built: wheels.Built, python: str, lock: str) -> dict[str, Any]:
    """An empty environment has what it needs after one install, and the first job does what the README says."""
    environment = wheels.Environment(folder, python, built, wheels.constraints_of(lock))
    findings = json.loads(environment.run("-m", "connectors.cli", "doctor", "--json"))
    found = environment.first_job()
    faults = [f"doctor: {each['found']}" for each in findings["findings"] if each["outcome"] == "failed"]
    faults += [f"{found[kind]} messages {kind}" for kind in ("lost", "doubled") if found[kind]]
    counts = {"messages": found["published"], "lost": found["lost"], "doubled": found["doubled"]}
    return outcome(faults, counts=counts, installed=found["versions"])


def trials(command_line: argparse.Namespace, stack: ExitStack) -> Iterator[Trial]:
    """The trials of the parts that were asked for; what they share is built with the first that needs it."""

    @cache
    def built() -> wheels.Built:
        return wheels.build(stack.enter_context(temporary_folder("dist")))

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
