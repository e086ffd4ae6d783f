"""What ./dev finds, makes and runs, in a small tree with a uv and a Python that only pretend to install."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = "sh sed cat cmp grep rm dirname basename id env sleep flock"

# The Python of an environment: writes down what it is to run. $BROKEN names what shall fail.
PYTHON = """#!/bin/sh
[ "$1" != -c ] || exit 0
echo "python $*" >>"$LOG"
for word in $BROKEN; do
    case "$*" in *"$word"*) exit 1 ;; esac
done
case "$2" in
    venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$UV" "$3/bin/uv" ;;
    connectors.cli) echo "$JAVA_HOME $PYSPARK_PYTHON $SPARK_LOCAL_IP ${PYTHONPATH-unset} ${SPARK_HOME-unset}" \\
        "${PYTHONDONTWRITEBYTECODE-unset} $GRPC_ENABLE_FORK_SUPPORT" ;;
esac
"""
UV = """#!/bin/sh
echo "uv $*" >>"$LOG"
for word in $BROKEN; do
    case "$*" in *"$word"*) exit 1 ;; esac
done
for last; do :; done
case "$1 $2" in
    "venv "*) mkdir -p "$last/bin" && cp "$FAKE_PYTHON" "$last/bin/python" ;;
    "python find") echo "/a/python for $last" ;;
    *sync) sleep "${INSTALL_SECONDS:-0}" ;;
esac
"""
JAVA = """#!/bin/sh
echo "    java.home = $(cd "$(dirname "$0")/.." && pwd)" >&2
echo "    java.specification.version = 17" >&2
"""


class Tree:
    """A small project with its own `dev`, a PATH without any real Python, uv or Java, and a log of what was called."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a tree"
        self.bin = folder / "bin"
        self.javas = folder / "javas"
        self.log = folder / "log"
        for made in (self.root / "bench", self.root / "tests" / "chaos", self.bin, self.javas):
            made.mkdir(parents=True)
        shutil.copy(ROOT / "dev", self.root)
        (self.root / "requirements.lock").write_text(
            "numpy==1.0 \\\n    --hash=sha256:1\nuv==0.9 \\\n    --hash=x\nz==1\n"
        )
        (self.root / "pyproject.toml").write_text("[project]\n")
        (self.root / "bench" / "fetch.py").touch()
        (self.root / "bench" / "_common.py").touch()
        for tool in (*TOOLS.split(), "mkdir", "cp"):
            (self.bin / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is needed here"))
        python, uv = self.program("../python", PYTHON), self.program("../uv", UV)
        self.environment = {"PATH": str(self.bin), "HOME": str(folder), "LOG": str(self.log)}
        self.environment |= {"JAVA_FOLDER": str(self.javas), "FAKE_PYTHON": str(python), "UV": str(uv)}
        self.started: list[subprocess.Popen[str]] = []

    def program(self, path: Path | str, text: str) -> Path:
        program = self.bin / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
        return program

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = (str(self.root / "dev"), *arguments)
        process = subprocess.Popen(command, env=self.environment | environment, start_new_session=True, **pipes)
        self.started.append(process)
        return process

    def dev(self, *arguments: str, status: int = 0, **environment: str) -> tuple[str, str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        assert process.returncode == status, out + err
        return out, err

    def stop(self) -> None:
        """End what a failed test has left running."""
        for process in self.started:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

    def calls(self, word: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if word in line]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path)
    yield tree
    tree.stop()


@pytest.fixture
def ready(tree: Tree) -> Tree:
    """A tree on whose machine uv and Java are found."""
    tree.program("uv", UV)
    tree.program(tree.javas / "jdk" / "bin" / "java", JAVA)
    return tree


class TestEnvironment:
    def test_made_once_and_again_for_another_lock_project_interpreter_or_place(self, ready: Tree) -> None:
        def made() -> int:
            before = len(ready.calls(" sync "))
            ready.dev("check")
            ready.dev("check")
            return len(ready.calls(" sync ")) - before

        assert made() == 1
        for file in ("requirements.lock", "pyproject.toml"):
            with (ready.root / file).open("a") as opened:
                opened.write("\n")
            assert made() == 1
        (ready.root / ".venv" / "bin" / "python").unlink()
        assert made() == 1
        ready.environment["PYTHON"] = "python3.13"
        assert made() == 1
        assert ready.calls("uv venv")[-1].endswith("--python python3.13 .venv")
        ready.root = ready.root.rename(ready.root.with_name("another tree"))
        assert made() == 1
        assert made() == 0

    @pytest.mark.parametrize("broken", ["venv", "sync", "--editable"])
    def test_failed_install_is_an_error_and_is_repaired(self, ready: Tree, broken: str) -> None:
        for verb in ("check", "test", "bench"):
            assert "dev: " in ready.dev(verb, *["fetch"] * (verb == "bench"), status=1, BROKEN=broken)[1]
        assert not ready.calls("python -m")
        ready.dev("check")
        assert ready.calls("mypy")

    def test_killed_install_is_repaired(self, ready: Tree) -> None:
        first = ready.start("check", INSTALL_SECONDS="60")
        while not ready.calls("sync"):
            assert first.poll() is None
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
        ready.dev("check")
        assert ready.calls("mypy")


class TestRun:
    def test_demo_sees_the_environment_and_nothing_else(self, ready: Tree) -> None:
        others = {"PYTHONPATH": "/a", "SPARK_HOME": "/b", "PYTHONDONTWRITEBYTECODE": "1"}
        out, _ = ready.dev("demo", **others)
        python = ready.root / ".venv" / "bin" / "python"
        assert out == f"{ready.javas / 'jdk'} {python} 127.0.0.1 unset unset unset 0\n"

    def test_arguments_are_passed_on(self, ready: Tree) -> None:
        (ready.root / "tests" / "chaos" / "pubsub.py").touch()
        (ready.root / "bench" / "_publish.py").touch()
        cases = {
            ("test", "-k", "a b"): "-m pytest -n 7 -k a b",
            ("test", "tests/unit"): "-m pytest -n 4 tests/unit",
            ("chaos", "pubsub", "--trials", "3"): "-m tests.chaos.pubsub --trials 3",
            ("bench", "fetch", "--rounds", "3"): "bench/fetch.py --rounds 3",
            ("bench", "--publish", "--only", "x"): "bench/_publish.py --only x",
            ("servers", "--port", "1"): "-m tests.servers pubsub-emulator --port 1",
            ("servers", "pubsub-emulator"): "-m tests.servers pubsub-emulator",
            ("servers", "moto"): "-m tests.servers moto",
            ("servers", "kafka", "--port", "2"): "-m tests.servers kafka --port 2",
            ("protos", "out"): "tools/protos.py out",
            ("docs",): "-m tools.reference",
            ("lock",): "tools/lock.py",
        }
        for arguments, called in cases.items():
            ready.dev(*arguments)
            assert ready.calls("python ")[-1].removeprefix("python ").removeprefix(f"{ready.root}/") == called

    def test_check_runs_every_step_and_fails_for_any(self, ready: Tree) -> None:
        _, err = ready.dev("check", status=1, BROKEN="ruff mypy")
        assert err.endswith("dev: check failed: ruff ruff mypy\n")
        assert ready.calls("test_house_rules")


@pytest.mark.parametrize(
    ("program", "unbuffered"),
    [
        ("-m connectors.cli --help", ""),
        ("-m connectors.cli doctor", "1"),
        ("-m connectors.cli spool inspect {folder} --json", "1"),
        ("-m connectors.cli demo --endpoint localhost --json", ""),
    ],
)
def test_a_program_whose_output_is_read_no_more_ends_without_a_trace(
    program: str, unbuffered: str, tmp_path: Path
) -> None:
    """As before ``| head``."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, *program.format(folder=tmp_path).split()]
    pipes = {"stdout": writing, "stderr": subprocess.PIPE, "text": True}
    environ = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, cwd=ROOT, env=environ, check=False, **pipes)
    os.close(writing)
    assert "BrokenPipe" not in done.stderr
    assert "Traceback" not in done.stderr
