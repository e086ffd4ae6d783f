"""What is wrong with a distribution: its metadata, its contents, its license. Each check returns its findings."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata

from tools.audit import brought, goes_with_apache, license_of
from tools.release.build import FOLDERS, Built, files_of_sdist, files_of_wheel
from tools.release.commands import run

__all__ = ["faults", "faults_of_licenses", "faults_of_metadata", "faults_of_sdist", "faults_of_text", "faults_of_wheel"]

# Of a wheel: what belongs to its package, by the beginnings of paths; and what must be there besides modules.
PACKAGES = {
    "pyspark_stream_connectors": ("connectors/",),
    "pyspark_stream_connectors_autoload": ("pyspark_", "stream_connectors_autoload/"),
}
NEEDED = {
    "pyspark_stream_connectors": (
        "connectors/py.typed",
        "connectors/core/errors/codes.toml",
        "connectors/core/options/builders.pyi",
        "connectors/protobuf/confluent/built_in.desc",
    ),
    "pyspark_stream_connectors_autoload": (
        "pyspark_kafka_py.py",
        "pyspark_kinesis.py",
        "pyspark_pubsub.py",
        "stream_connectors_autoload/py.typed",
    ),
}
# Of an sdist: beside the files of the wheel, what a packager builds, reads and tests with.
SDIST_NEEDED = ("LICENSE", "PKG-INFO", "README.md", "pyproject.toml")
_GENERATED = {"PKG-INFO", ".gitignore"}  # hatchling's; the second lets an sdist be built again
_MACHINE = re.compile(rb"(?<![\w.$}~])/(?:" + b"|".join((b"ro" + b"ot", b"home", b"Users", b"work")) + rb")/\w")
_SECRETS = {
    "a private key": re.compile(rb"PRIVATE KEY-----(?:\\n|\s)+(?:[A-Za-z0-9+/=]{60,})"),
    "a key of AWS": re.compile(rb"\b(?:AKIA|ASIA)(?!\w*EXAMPLE)(?!ABCDEF)[0-9A-Z]{16}\b"),
    "a key of Google": re.compile(rb"\bAIza[0-9A-Za-z_-]{35}\b"),
    "a token of GitHub": re.compile(rb"\b(?:gh[opsu]_[0-9A-Za-z]{36}|github_pat_\w{60,})\b"),
    "a token of an index": re.compile(rb"\bpypi-AgE[0-9A-Za-z_-]{50,}"),
    "a token of Slack": re.compile(rb"\bxox[abprs]-[0-9A-Za-z-]{20,}"),
}


def faults(built: Built) -> list[str]:
    """Return what is wrong with both distributions, and with the licenses of what they bring."""
    found = faults_of_licenses()
    for name in FOLDERS:
        wheel, sdist = files_of_wheel(built.wheels[name]), files_of_sdist(built.sdists[name])
        found += faults_of_wheel(name, built)
        found += faults_of_sdist(name, built)
        [metadata] = [data for path, data in wheel.items() if path.endswith(".dist-info/METADATA")]
        for where, text in (("wheel", metadata), ("sdist", sdist.get("PKG-INFO", b""))):
            found += [f"{name}, {where}: {fault}" for fault in faults_of_metadata(text, built.tree / FOLDERS[name])]
        for where, files in (("wheel", wheel), ("sdist", sdist)):
            found += [f"{name}, {where}: {fault}" for fault in faults_of_text(files)]
    return found


def _tracked(project: Path) -> dict[str, bytes]:
    """Return the committed files of a project."""
    return {path: (project / path).read_bytes() for path in run("git", "ls-files", cwd=project).splitlines()}


def faults_of_wheel(name: str, built: Built) -> list[str]:
    """Return how a wheel differs from the package in the tree that it was built from."""
    files = files_of_wheel(built.wheels[name])
    tracked = _tracked(built.tree / FOLDERS[name])
    wanted = {path for path in tracked if path.startswith(PACKAGES[name])}
    info = built.wheels[name].name.removesuffix("-py3-none-any.whl") + ".dist-info"
    extra = {f"{info}/{file}" for file in ("METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    missing = {*wanted, *NEEDED[name], f"{info}/licenses/LICENSE"} - files.keys()
    found = [f"{name}: {path} is missing" for path in sorted(missing)]
    found += [f"{name}: {path} is too much" for path in sorted(files.keys() - wanted - extra)]
    found += [f"{name}: {path} differs" for path in sorted(wanted & files.keys()) if files[path] != tracked[path]]
    if files.get(f"{info}/licenses/LICENSE") != (built.tree / "LICENSE").read_bytes():
        found.append(f"{name}: its license is not that of the tree")
    return found


def faults_of_sdist(name: str, built: Built) -> list[str]:
    """Return how an sdist differs from the tree, and whether it gives another wheel than the tree does."""
    files, wheel = files_of_sdist(built.sdists[name]), built.wheels[name]
    tracked = _tracked(built.tree / FOLDERS[name])
    needed = {path for path in tracked if path.startswith(PACKAGES[name])}
    if missing := sorted({*needed, *SDIST_NEEDED} - files.keys()):
        return [f"{name}: {path} is not in the sdist" for path in missing]
    found = []
    for path in sorted(files.keys() - _GENERATED):
        if path not in tracked:
            found.append(f"{name}: {path} is in the sdist and not in the tree")
        elif files[path] != tracked[path]:
            found.append(f"{name}: {path} of the sdist differs")
    if files.get("LICENSE") != (built.tree / "LICENSE").read_bytes():
        found.append(f"{name}: the license of the sdist is not that of the tree")
    again = files_of_wheel(_wheel_of_sdist(name, built))
    differ = {path for path, data in files_of_wheel(wheel).items() if again.pop(path, None) != data} | again.keys()
    return [*found, *(f"{name}: {path} of the wheel that the sdist gives differs" for path in sorted(differ))]


def _wheel_of_sdist(name: str, built: Built) -> Path:
    """Build the wheel of an sdist, beside the clone, and return it."""
    folder = built.tree.parent / f"of-sdist-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(built.sdists[name]) as archive:
        archive.extractall(folder, filter="data")
    root = folder / built.sdists[name].name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder / "again", cwd=root)
    return folder / "again" / built.wheels[name].name


def faults_of_metadata(text: bytes, project: Path) -> Iterator[str]:
    """Yield what the standard of metadata refuses, and where they say other than the project does."""
    try:
        metadata = Metadata.from_email(text, validate=True)
    except ExceptionGroup as group:
        yield from map(str, group.exceptions)
        return
    declared: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted: Mapping[str, object] = {
        "name": declared["name"],
        "summary": declared["description"],
        "license_expression": declared["license"],
        "license_files": declared["license-files"],
        "requires_python": declared["requires-python"],
        "description": (project / "README.md").read_text(encoding="utf-8"),
        "description_content_type": "text/markdown",
        "provides_extra": sorted(declared.get("optional-dependencies", {})),
        "classifiers": declared["classifiers"],
    }
    for field, value in wanted.items():
        said = getattr(metadata, field)
        said = sorted(said or []) if field == "provides_extra" else str(said) if field == "requires_python" else said
        if said != value:
            yield f"{field} is {str(said)[:80]!r}, and {str(value)[:80]!r} in pyproject.toml or README.md"


def faults_of_text(files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the files that hold a path of one machine, or what looks like a secret."""
    for path, data in files.items():
        if match := _MACHINE.search(data):
            yield f"{path} holds a path of one machine: {match[0]!r}"
        yield from (f"{path} holds {name}" for name, pattern in _SECRETS.items() if pattern.search(data))


def faults_of_licenses() -> list[str]:
    """Return the packages that a user gets with all extras, and whose license nobody has looked at."""
    found = brought("pyspark-stream-connectors", frozenset({"all", "spark", "testing"}))
    texts = {name: license_of(each) for name, each in sorted(found.items())}
    return [
        f"{name} has the license {text!r}: look at it" for name, text in texts.items() if not goes_with_apache(text)
    ]
