"""Builds a release into ``dist/VERSION``, checks and tries it, and prints the command that publishes it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.lock import pins
from tools.release.build import Built, build_twice
from tools.release.checks import faults
from tools.release.commands import ROOT, ReleaseError
from tools.release.commit import Release, prepare
from tools.release.records import bill_of_materials, checksums, provenance
from tools.release.trial import PACK, everything, faults_of_installs

__all__ = ["main", "make"]


def _say(text: str) -> None:
    sys.stderr.write(f"release: {text}\n")


def make(release: Release, target: Path, folder: Path) -> list[Path]:
    """Build, check and try a release, and write its files; returns them.

    Args:
        release: what is built.
        target: a folder that is made anew.
        folder: an empty one for what is not kept.

    Raises:
        ReleaseError: something is wrong with it.
    """
    built = build_twice(folder, release.commit)
    for path in built.files:
        _say(f"{path.name}: {path.stat().st_size:,} bytes, the same in both builds")
    found = faults(built) + faults_of_installs(folder / "installs", built, release.version)
    if found:
        raise ReleaseError("\n".join([f"{len(found)} faults:", *found]))
    _say("metadata, contents and licenses are right; wheels and sdists work in empty environments")
    return _write(release, built, target, folder)


def _write(release: Release, built: Built, target: Path, folder: Path) -> list[Path]:
    """Write the files of a release into a folder that is made anew."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    files = [Path(shutil.copy(path, target)) for path in built.files]
    environment = everything(folder / "everything", built, sys.executable, pins("requirements.lock"))
    bill = target / f"{PACK}-{release.version}.cdx.json"
    components = bill_of_materials(environment, bill, release.version)["components"]
    _say(f"{bill.name}: {len(components)} components")
    files.append(bill)
    origin = target / f"{PACK}-{release.version}.intoto.json"
    origin.write_text(json.dumps(provenance(release, files), indent=1) + "\n", encoding="utf-8")
    files.append(origin)
    notes, sums = target / "NOTES.md", target / "SHA256SUMS"
    notes.write_text(release.notes, encoding="utf-8")
    sums.write_text(checksums(files), encoding="utf-8")
    return [*files, notes, sums]


def main(arguments: list[str]) -> int:
    """Make a release; returns the exit code."""
    parser = argparse.ArgumentParser(prog="./dev release", description=__doc__)
    parser.add_argument("version", nargs="?", default="", help="refuse if the tree has another one")
    command_line = parser.parse_args(arguments)
    try:
        release = prepare(ROOT, command_line.version, datetime.now(UTC).date().isoformat())
        _say(
            f"{release.version} from commit {release.commit}" + (f", new on {release.branch}" if release.branch else "")
        )
        target = ROOT / "dist" / release.version
        with TemporaryDirectory(prefix="release-") as folder:
            make(release, target, Path(folder))
    except ReleaseError as error:
        _say(str(error))
        return 1
    sys.stdout.write(f"{target}\n")
    if release.branch:
        _say("nothing is published. The command that publishes it, as CONTRIBUTING.md says:")
        sys.stdout.write(f"git push origin {release.branch}:refs/tags/{release.tag}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
