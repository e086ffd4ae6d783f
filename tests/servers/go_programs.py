"""Programs through Go's module proxy: `go install` builds a pinned version, wherever Go is set up to find it.

    program = go_program("versitygw")
    if program.reason:
        ...                                   # one sentence: why it cannot be had
    subprocess.run([program.path, "--version"])

They are built below ``~/.cache``, so that only the first call starts Go; that takes some minutes. The checksum of the
module is compared with the one that is pinned here; the module itself pins those of what it depends on.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GO_MODULES", "GoModule", "GoProgram", "go_program"]

_SECONDS = 1200
_USUAL_GO = "/usr/local/go/bin/go"


@dataclass(frozen=True)
class GoModule:
    """A pinned module.

    Attributes:
        module: its path.
        version: with its ``v``.
        checksum: of its source, as `go version -m` shows it.
        package: the folder of the program in it; empty for the module itself.
    """

    module: str
    version: str
    checksum: str
    package: str = ""


GO_MODULES = {
    "fake-gcs-server": GoModule(
        "github.com/fsouza/fake-gcs-server", "v1.56.1", "h1:K03sAvbLvDz4hAynpCCUqnNRp+ik9JFSvHbkD/wTPOU="
    ),
    "toxiproxy": GoModule(
        "github.com/Shopify/toxiproxy/v2",
        "v2.12.0",
        "h1:d1x++lYZg/zijXPPcv7PH0MvHMzEI5aX/YuUi/Sw+yg=",
        "/cmd/server",
    ),
    "versitygw": GoModule(
        "github.com/versity/versitygw",
        "v1.8.0",
        "h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc=",
        "/cmd/versitygw",
    ),
}
"""By the name of the program."""


@dataclass(frozen=True)
class GoProgram:
    """The result of `go_program`: either ``path`` is set, or ``reason`` says why not."""

    path: str = ""
    reason: str = ""


def go_program(name: str) -> GoProgram:
    """Return the program of `GO_MODULES` with this name, built now or at an earlier call."""
    pinned = GO_MODULES[name]
    cache = Path("~/.cache/pyspark-stream-connectors").expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / f"{name}-{pinned.version}" / name
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time, the others take its result
        if not program.is_file() and (reason := _build(name, pinned, program)):
            return GoProgram(reason=reason)
    return GoProgram(str(program))


def _build(name: str, pinned: GoModule, program: Path) -> str:
    """Let Go build a program; return why it could not."""
    go = shutil.which("go") or shutil.which(_USUAL_GO)
    if go is None:
        return "Go was not found on the PATH: install the package golang-go"
    new = program.parent.with_name(f"{program.parent.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    command = [go, "install", f"{pinned.module}{pinned.package}@{pinned.version}"]
    try:
        done = _run(command, {**os.environ, "GOBIN": str(new)})
        for built in new.iterdir():  # Go names it after its folder
            built.rename(new / name)
        shown = _run([go, "version", "-m", str(new / name)], dict(os.environ))
    except subprocess.TimeoutExpired:
        return f"Go did not build {name} in {_SECONDS} s"
    if done.returncode:
        return f"Go cannot build {name}: {(done.stderr.strip().splitlines() or ['no message'])[-1][:400]}"
    if f"{pinned.module}\t{pinned.version}\t{pinned.checksum}" not in shown.stdout:
        return f"the source of {name} {pinned.version} does not have the checksum {pinned.checksum}"
    new.rename(program.parent)
    return ""


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
