"""The record of a fault run: every trial with its seed and outcome, kept so that a stopped run goes on from it.

It is one JSON file, replaced whole after each trial, and it is committed: it names the commits, versions and seeds, and
no machine. Several processes may add to it at a time, each with other trials.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]

_FORMAT = 1
_CONFIDENCE = 0.95
_CODE_CHARACTERS = 16
_SOURCES = ("core", "kafka", "kinesis", "pubsub", "spool")
PARTS = {
    "avro": ("avro", "core"),
    "clients": _SOURCES,
    "cluster": _SOURCES,
    "histories": ("core", "spool"),
    "hostile": (*_SOURCES, "avro", "cli", "json", "observe", "protobuf", "registry"),
    "kafka": ("core", "kafka"),
    "kinesis": ("core", "kinesis", "spool"),
    "lakehouse": _SOURCES,
    "late_commits": ("core", "kafka"),
    "network": (*_SOURCES, "protobuf", "registry"),
    "packaging": (*_SOURCES, "avro", "cli", "json", "observe", "protobuf", "registry", "testing"),
    "peers": ("core", "kinesis", "spool"),
    "pubsub": ("core", "pubsub", "spool"),
    "soak": _SOURCES,
    "stores": ("core", "pubsub", "spool"),
    "upgrade": _SOURCES,
    "versions": _SOURCES,
}
"""The packages below connectors/ that a run is about: its record belongs to one state of them."""


def parts_of(what: str) -> tuple[str, ...]:
    """Return the packages that a run is about."""
    return PARTS.get(what, ("core", "spool", what))


class RecordMismatchError(Exception):
    """Raised when a record was begun with other code, versions or settings than the run that would go on from it."""


class Record:
    """The record of one run, in a file.

    Args:
        path: the file; a run goes on from it when it is there.
        what: name of the run.
        settings: what must not change within a run, as JSON values.
        packages: distributions whose versions are noted.
        fresh: begin anew, whatever is in the file.
        across: go on from a record of other code: trials made with the present code name their commit, and those that
            failed with other code may run again; the record keeps them apart, in ``before``.
        seed: of a new run; random by default.

    Attributes:
        round: how often the trials were gone through, and once more. From the second round on their names end with it.

    Raises:
        RecordMismatchError: what is in the file was made by other code, versions or settings.
    """

    def __init__(
        self,
        path: Path,
        what: str,
        settings: Mapping[str, Any],
        packages: Sequence[str],
        *,
        fresh: bool = False,
        across: bool = False,
        seed: int | None = None,
    ) -> None:
        self.path, self._commit, self.round = path, head_commit(), 1
        fixed = {
            "format": _FORMAT,
            "what": what,
            "settings": dict(settings),
            "versions": versions(packages),
            "code": code_digest(ROOT / "connectors", parts_of(what)),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if path.exists() and not fresh:
                self._content: dict[str, Any] = json.loads(path.read_text())
                if across:
                    fixed.pop("code")
                self._check(fixed, seed)
            else:
                seed = secrets.randbits(32) if seed is None else seed
                begun = {"commit": self._commit, "seed": seed, "started": _today(), "ended": _today()}
                self._content = {**fixed, **begun, "trials": []}
                self._write()

    def _check(self, fixed: Mapping[str, Any], seed: int | None) -> None:
        wanted = {**fixed, "seed": self.seed if seed is None else seed}
        differing = [key for key, value in wanted.items() if self._content.get(key) != value]
        if differing:
            hint = "--across goes on, --fresh begins anew" if differing == ["code"] else "--fresh begins anew"
            raise RecordMismatchError(f"{self.path} was begun with another {', another '.join(differing)}; {hint}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let no other process change the record meanwhile."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    @property
    def seed(self) -> int:
        """The seed of the run; each trial has one of its own that follows from it."""
        return int(self._content["seed"])

    def in_round(self, trial: str) -> str:
        """The name of a trial in this round."""
        ending = f"-round-{self.round}"
        return trial if self.round == 1 or trial.endswith(ending) else f"{trial}{ending}"

    def trial_seed(self, trial: str) -> int:
        """The seed of a trial in this round, by its name: the same whatever ran before."""
        text = f"{self.seed} {self.in_round(trial)}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")

    def count(self, part: str) -> int:
        """How many trials a part has."""
        return sum(each["part"] == part for each in self.trials)

    @property
    def trials(self) -> list[dict[str, Any]]:
        """All trials so far."""
        return list(self._content["trials"])

    def done(self, trial: str) -> bool:
        """Whether a trial is in the record, by this process or another, and did not fail with other code."""
        with self._locked():
            self._content = json.loads(self.path.read_text())
        return any(each["trial"] == trial and (each["ok"] or self._is_of_now(each)) for each in self.trials)

    def _is_of_now(self, trial: Mapping[str, Any]) -> bool:
        return bool(trial.get("commit", self._content["commit"]) == self._commit)

    def add(self, trial: str, part: str, outcome: Mapping[str, Any]) -> None:
        """Add a trial, and write the file. One of that name, which failed with other code, moves to ``before``.

        Args:
            trial: its name in this run.
            part: the part of the run that it belongs to.
            outcome: JSON values; ``ok`` says whether all was as it must be, ``counts`` are summed up by part, and
                ``killed`` lists who was killed at a random moment.
        """
        entry = {"trial": trial, "part": part, "seed": self.trial_seed(trial), **outcome}
        if self._commit != self._content["commit"]:
            entry["commit"] = self._commit
        with self._locked():
            content = self._content = json.loads(self.path.read_text())
            if before := [each for each in content["trials"] if each["trial"] == trial]:
                content["before"] = [*content.get("before", ()), *before]
            content["trials"] = [each for each in content["trials"] if each["trial"] != trial] + [entry]
            content["ended"] = _today()
            content["summary"] = summary(content["trials"])
            self._write()

    @property
    def failed(self) -> list[str]:
        """The names of the trials that failed."""
        return [each["trial"] for each in self._content["trials"] if not each["ok"]]

    @property
    def summary(self) -> dict[str, Any]:
        """By part: trials, failures, sums of what was counted, and the bound."""
        return summary(self._content["trials"])

    def _write(self) -> None:
        new = self.path.with_name(f".{self.path.name}.new")
        with new.open("w") as file:
            file.write(json.dumps(self._content, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)


def head_commit() -> str:
    """The commit of this tree; empty outside of a repository."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def summary(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Trials, failures and sums of the counts of each part; victims and their bounds, where it has victims."""
    answer: dict[str, Any] = {}
    for part in dict.fromkeys(each["part"] for each in trials):
        own = [each for each in trials if each["part"] == part]
        failed = sum(not each["ok"] for each in own)
        counts: Counter[str] = Counter()
        for each in own:
            counts.update(each.get("counts", {}))
        answer[part] = {"trials": len(own), "failed": failed, **counts}
        if victims := Counter(victim for each in own for victim in each.get("killed", ())):
            # A bound stands on random kills only; each kind has the bound that its own kills support.
            # A trial that broke off does not say whom it has killed.
            failed_victims = {victim for each in own if not each["ok"] for victim in each.get("killed", victims)}
            answer[part]["victims"] = dict(sorted(victims.items()))
            answer[part]["failure_rate_upper_bound_95"] = None if failed else upper_bound(victims.total())
            answer[part]["failure_rate_upper_bound_95_by_victim"] = {
                victim: None if victim in failed_victims else upper_bound(count)
                for victim, count in sorted(victims.items())
            }
    return answer


def upper_bound(kills: int) -> float:
    """The failure rate that no failure after so many independent kills excludes with 95% confidence: about 3/n."""
    return round(1 - (1 - _CONFIDENCE) ** (1 / kills), 4)


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The versions of Python, Java and distributions."""
    found = {package: importlib.metadata.version(package) for package in packages}
    return {"python": platform.python_version(), "java": java_version(), **found}


def java_version() -> str:
    """The version of the Java that Spark will use."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    quoted = re.search(r'version "([^"]+)"', text)
    return quoted[1] if quoted else text.splitlines()[0]


def code_digest(folder: Path, parts: Sequence[str]) -> str:
    """A digest of all Python files in parts of a folder: a run is about one state of the code that it runs."""
    answer = hashlib.blake2b(digest_size=_CODE_CHARACTERS // 2)
    for path in sorted(path for part in parts for path in (folder / part).rglob("*.py")):
        answer.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return answer.hexdigest()


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()
