"""What ./dev finds, makes and runs, in a small tree with interpreters that only pretend to install."""

from __future__ import annotations

import ast
import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = "sh sed cut cat cmp grep mkdir mv rm rmdir dirname basename cp id env sleep ln readlink flock touch"
PYTESTS = {"connect", "long"}
"""Chaos runs that pass their arguments on to pytest."""
VERBS = ("demo", "test", "check", "chaos", "bench", "servers", "protos", "docs", "env", "lock")

# Answers -c as the real interpreter does; pretends -m venv, -m virtualenv, -m ensurepip and -m pip, and writes
# everything else down. $BROKEN names what shall fail.
PYTHON = f"""#!/bin/sh
case "$1 $2" in
    *print*sys.executable*) echo "$0"; exit ;;
    "-c "*) exec "{sys.executable}" "$@" ;;
esac
echo "$(basename "$0") $*" >>"$LOG"
for word in $BROKEN; do
    case "$*" in *"$word"*) exit 1 ;; esac
done
for last; do :; done
case "$2" in
    venv | virtualenv) mkdir -p "$last/bin" && cp "$0" "$last/bin/python" ;;
    pip) case "$*" in
        *"install --quiet"*) ;;
        *install*requirements*)
            if [ -t 1 ]; then echo "a bar"; fi
            echo "Collecting numpy==1.0 (from -r requirements.lock (line 1))"
            echo "  Downloading numpy-1.0.whl (16.1 MB)"
            echo "Building wheels for collected packages: numpy"
            echo "  Building wheel for numpy (pyproject.toml): started"
            echo "  Building wheel for numpy (pyproject.toml): finished with status 'done'"
            echo "Installing collected packages: numpy"
            sleep "${{INSTALL_SECONDS:-0}}" ;;
    esac ;;
    connectors.cli) echo "$JAVA_HOME $PYSPARK_PYTHON $SPARK_LOCAL_IP ${{PYTHONPATH-unset}} ${{SPARK_HOME-unset}}" \
        "${{PYTHONDONTWRITEBYTECODE-unset}} $GRPC_ENABLE_FORK_SUPPORT" ;;
esac
"""
OLD_PYTHON = f"""#!/bin/sh
exec "{sys.executable}" -c 'import sys; sys.version_info = (3, 10, 13); exec(sys.argv[1])' "$2"
"""
BROKEN_SHIM = """#!/bin/sh
echo "pyenv: $(basename "$0"): command not found" >&2
exit 127
"""
UV = """#!/bin/sh
echo "uv $*" >>"$LOG"
[ "${UV_FAILS:-}" != "$1" ] || exit 1
for last; do :; done
[ "$1" = pip ] || { mkdir -p "$last/bin" && cp "$(command -v python3)" "$last/bin/python"; }
"""
# Has no Java 17, as a newer Debian.
APT_GET = """#!/bin/sh
echo "apt-get $*" >>"$LOG"
case "$*" in
    *install*17*) exit 100 ;;
    *install*) cp -r "$NEW" "$FOLDER" ;;
esac
"""
JAVA = """#!/bin/sh
if [ "$1" = --add-modules=jdk.incubator.vector ] && [ "{module}" = no ]; then
    echo "Error: Module jdk.incubator.vector not found" >&2
    exit 1
fi
echo "    java.home = $(cd "$(dirname "$0")/.." && pwd)" >&2
echo "    java.specification.version = {version}" >&2
"""


class Tree:
    """A small project with its own `dev`, a PATH without any real Python or Java, and a log of what was called."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a tree"
        self.bin = folder / "bin"
        self.javas = folder / "javas"
        self.log = folder / "log"
        for made in (self.root / "bench", self.root / "tests" / "chaos", self.bin, self.javas):
            made.mkdir(parents=True)
        shutil.copy(ROOT / "dev", self.root)
        (self.root / "requirements.lock").write_text("numpy==1.0\n")
        (self.root / "pyproject.toml").write_text("[project]\n")
        (self.root / "bench" / "fetch.py").touch()
        (self.root / "bench" / "_common.py").touch()
        for tool in TOOLS.split():
            (self.bin / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is needed here"))
        self.environment = {"PATH": str(self.bin), "HOME": str(folder), "LOG": str(self.log)}
        self.environment["JAVA_FOLDER"] = str(self.javas)
        self.started: list[subprocess.Popen[str]] = []

    def program(self, path: Path | str, text: str) -> Path:
        program = self.bin / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
        return program

    def java(self, home: Path, version: str = "17", module: str = "yes") -> Path:
        self.program(home / "bin" / "java", JAVA.format(version=version, module=module))
        return home

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
    """A tree on whose machine Python and Java are found."""
    tree.program("python3", PYTHON)
    tree.java(tree.javas / "jdk")
    return tree


def test_help_names_every_verb(tree: Tree) -> None:
    out, _ = tree.dev("--help")
    for verb in VERBS:
        assert f"\n  {verb} " in out


@pytest.mark.parametrize("arguments", [("deploy",), (), ("--lowest",), ("--no-such-option", "test")])
def test_wrong_use_shows_usage_and_exits_2(tree: Tree, arguments: tuple[str, ...]) -> None:
    _, err = tree.dev(*arguments, status=2)
    assert "usage: ./dev" in err


class TestHelp:
    """Help needs nothing: no Python, no Java, no .venv."""

    @pytest.mark.parametrize("flag", ["--help", "-h"])
    @pytest.mark.parametrize("verb", VERBS)
    def test_a_verb_shows_its_usage_and_installs_nothing(self, verb: str, flag: str, tree: Tree) -> None:
        out, err = tree.dev(verb, flag)
        assert out.startswith(f"usage: ./dev {verb} ")
        assert err == ""
        assert not (tree.root / ".venv").exists()

    def test_it_runs_nothing_where_a_verb_takes_arguments_too(self, ready: Tree) -> None:
        for arguments in (("lock", "--help"), ("docs", "--site", "--help"), ("test", "tests/unit", "-h")):
            ready.dev(*arguments)
        assert ready.calls("") == []

    def test_a_verb_that_is_none_is_wrong_use(self, tree: Tree) -> None:
        assert "unknown verb: deploy" in tree.dev("deploy", "--help", status=2)[1]

    def test_of_all_benchmarks_names_them(self, tree: Tree) -> None:
        assert "\n  fetch\n" in tree.dev("bench", "--help")[0]

    @pytest.mark.parametrize(("verb", "folder"), [("bench", "bench"), ("chaos", "tests/chaos")])
    def test_of_a_program_shows_its_docstring(self, verb: str, folder: str, tree: Tree) -> None:
        for program in sorted((ROOT / folder).glob("[!_]*.py")):
            shutil.copy(program, tree.root / folder)
            out, _ = tree.dev(verb, program.stem, "--rows", "3", "--help")
            docstring = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))
            assert docstring
            assert f"\n\n{docstring}\n\n" in out

    def test_of_a_program_that_is_none_lists_those_that_are(self, tree: Tree) -> None:
        out, err = tree.dev("bench", "fech", "--help", status=2)
        assert out.endswith("\nfetch\n")
        assert "no benchmark named fech" in err

    def test_of_the_demo_shows_its_options(self, tree: Tree) -> None:
        (tree.root / "docs").mkdir()
        shutil.copytree(ROOT / "docs" / "reference", tree.root / "docs" / "reference")
        out, _ = tree.dev("demo", "--help")
        assert "\n  --messages NUMBER   How many messages to publish." in out
        assert "--format" not in out

    def test_is_that_of_the_program_itself_once_there_is_an_environment(self, ready: Tree) -> None:
        ready.dev("check")
        shutil.rmtree(ready.javas)
        ready.log.unlink()
        for arguments in (("demo", "--help"), ("bench", "fetch", "--help"), ("test", "-h"), ("servers", "--help")):
            ready.dev(*arguments)
        assert ready.calls("") == [
            "python -m connectors.cli demo --help",
            "python bench/fetch.py --help",
            "python -m pytest -n 4 -h",
            "python -m connectors.testing.servers.pubsub_emulator --help",
        ]


class TestPython:
    def test_of_several_the_first_is_shown_and_none_complains(self, tree: Tree) -> None:
        own = PYTHON.replace('echo "$0"; exit', f'exec "{sys.executable}" -c \'import sys; print(sys.argv[1])\' "$0"')
        tree.program("python3.11", own)
        newest = tree.program("python3.13", own)
        out, err = tree.dev("env", status=1)
        assert out == f"python {newest} ({sys.version.split()[0]})\n"
        assert "BrokenPipe" not in err

    def test_newest_is_taken(self, tree: Tree) -> None:
        tree.program("python3.11", PYTHON)
        newest = tree.program("python3.13", PYTHON)
        assert f"python {newest} (" in tree.dev("env", status=1)[0]

    def test_oldest_is_taken_for_the_lowest_versions(self, tree: Tree) -> None:
        oldest = tree.program("python3.11", PYTHON)
        tree.program("python3.13", PYTHON)
        assert f"python {oldest} (" in tree.dev("--lowest", "env", status=1)[0]

    @pytest.mark.parametrize("text", [BROKEN_SHIM, OLD_PYTHON], ids=["broken shim", "3.10"])
    def test_unusable_one_is_passed_over(self, tree: Tree, text: str) -> None:
        tree.program("python3.14", text)
        tree.program("python3.12", text)
        good = tree.program("python3", PYTHON)
        out, err = tree.dev("env", status=1)
        assert f"python {good} (" in out
        assert "pyenv" not in err

    def test_only_unusable_ones_give_one_line(self, tree: Tree) -> None:
        tree.program("python3", OLD_PYTHON)
        tree.program("python3.12", BROKEN_SHIM)
        _, err = tree.dev("check", status=1)
        assert err.startswith("dev: Python 3.11 or newer was not found")
        assert err.count("\n") == 1

    def test_variable_wins(self, tree: Tree) -> None:
        tree.program("python3.14", PYTHON)
        chosen = tree.program("elsewhere/my python", PYTHON)
        assert f"python {chosen} (" in tree.dev("env", status=1, PYTHON=str(chosen))[0]

    def test_bad_variable_is_an_error(self, ready: Tree) -> None:
        old = ready.program("old", OLD_PYTHON)
        _, err = ready.dev("check", status=1, PYTHON=str(old))
        assert err == f"dev: PYTHON={old} is not a CPython 3.11 or newer that runs\n"


class TestJava:
    def test_missing_gives_one_line_that_names_the_package(self, tree: Tree) -> None:
        tree.program("python3", PYTHON)
        tree.program("apt-get", APT_GET)
        _, err = tree.dev("test", status=1)
        assert "openjdk-17-jre-headless" in err
        assert err.count("\n") == 1
        assert tree.calls("") == []

    def test_java_home_comes_first_then_path_then_folder(self, tree: Tree) -> None:
        folder = tree.java(tree.javas / "a jdk", "21")
        assert f"java {folder} (21)" in tree.dev("env", status=1)[0]
        tree.java(tree.bin.parent, "17")
        assert f"java {tree.bin.parent} (17)" in tree.dev("env", status=1)[0]
        home = tree.java(tree.bin / "home", "25")
        assert f"java {home} (25)" in tree.dev("env", status=1, JAVA_HOME=str(home))[0]

    @pytest.mark.parametrize(("version", "module"), [("1.8", "no"), ("11", "yes"), ("21", "no")])
    def test_old_or_trimmed_one_is_passed_over(self, tree: Tree, version: str, module: str) -> None:
        bad = tree.java(tree.javas / "a", version, module)
        good = tree.java(tree.javas / "b")
        out, err = tree.dev("env", status=1, JAVA_HOME=str(bad))
        assert f"java {good} (17)" in out
        assert f"JAVA_HOME={bad} is not a complete Java 17" in err

    @pytest.mark.parametrize("arguments", [("--install-java", "demo"), ("demo", "--install-java"), ("demo",)])
    def test_installed_when_asked_or_in_ci(self, tree: Tree, arguments: tuple[str, ...]) -> None:
        tree.program("python3", PYTHON)
        new = tree.java(tree.bin / "new", "21")
        tree.program("id", "#!/bin/sh\necho 0\n")
        tree.program("apt-get", APT_GET)
        ci = "" if "--install-java" in arguments else "true"
        out, _ = tree.dev(*arguments, NEW=str(new), FOLDER=str(tree.javas), CI=ci)
        assert out.startswith(str(tree.javas / "new"))
        assert [call.split()[-1] for call in tree.calls("apt-get")] == [
            "-qq",
            "openjdk-17-jre-headless",
            "openjdk-21-jre-headless",
        ]
        assert "--install-java" not in tree.calls("connectors.cli")[0]

    def test_not_needed_for_check(self, tree: Tree) -> None:
        tree.program("python3", PYTHON)
        tree.dev("check")

    def test_that_cannot_be_installed_is_an_error(self, tree: Tree) -> None:
        tree.program("python3", PYTHON)
        tree.program("id", "#!/bin/sh\necho 0\n")
        tree.program("apt-get", "#!/bin/sh\nexit 100\n")
        _, err = tree.dev("demo", status=1, CI="true")
        assert "apt-get could not install openjdk-17-jre-headless" in err


class TestEnvironment:
    def test_made_once(self, ready: Tree) -> None:
        for _ in range(3):
            ready.dev("demo")
        assert len(ready.calls("requirements.lock")) == 1
        assert len(ready.calls("--editable")) == 1
        assert len(ready.calls("connectors.cli")) == 3

    def test_a_log_has_a_line_for_each_package_with_how_many_there_are(self, ready: Tree) -> None:
        _, err = ready.dev("demo")
        assert "into .venv: 1 packages, " in err
        assert "\ndev: 1 of 1: numpy-1.0.whl (16.1 MB)\ndev: building numpy\ndev: installing them\n" in err
        assert "a bar" not in err

    def test_a_terminal_has_the_bars_of_pip(self, ready: Tree) -> None:
        terminal, end = pty.openpty()
        command = [str(ready.root / "dev"), "check"]
        run = subprocess.Popen(command, env=ready.environment, stdout=subprocess.DEVNULL, stderr=end)
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while data := os.read(terminal, 4096):
                shown += data
        os.close(terminal)
        assert run.wait(timeout=60) == 0
        assert b"a bar\r\nCollecting numpy==1.0" in shown

    def test_uv_is_not_told_to_be_silent(self, ready: Tree) -> None:
        ready.program("uv", UV)
        ready.dev("demo")
        assert [call for call in ready.calls("uv pip install") if "--quiet" not in call and "requirements.lock" in call]

    def test_made_anew_for_another_lock_and_package_only_for_another_pyproject(self, ready: Tree) -> None:
        ready.dev("demo")
        (ready.root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
        ready.dev("demo")
        assert [len(ready.calls(word)) for word in ("requirements.lock", "--editable")] == [1, 2]
        (ready.root / "requirements.lock").write_text("numpy==2.0\n")
        ready.dev("demo")
        assert [len(ready.calls(word)) for word in ("requirements.lock", "--editable")] == [2, 3]

    def test_made_anew_where_the_tree_was_moved(self, ready: Tree) -> None:
        ready.dev("demo")
        ready.root = ready.root.rename(ready.root.with_name("moved"))
        ready.dev("demo")
        assert len(ready.calls("requirements.lock")) == 2

    def test_made_anew_for_another_interpreter_and_kept_without_a_wish(self, ready: Tree) -> None:
        other = ready.program("other", PYTHON.replace('"$@" ;;', "-c \"import sys; sys.base_prefix = '/'; $2\" ;;"))
        ready.dev("demo")
        ready.dev("demo", PYTHON=str(other))
        ready.dev("demo", PYTHON=str(other))
        ready.dev("demo")
        assert [call.split()[0] for call in ready.calls("-m venv")] == ["python3", "other"]

    def test_made_anew_when_its_interpreter_is_gone(self, ready: Tree) -> None:
        ready.dev("demo")
        (ready.root / ".venv" / "bin" / "python").unlink()
        ready.dev("demo")
        assert len(ready.calls("requirements.lock")) == 2

    @pytest.mark.parametrize(
        ("broken", "works"),
        [
            ("", "-m venv .venv"),
            ("--version", "-m ensurepip"),
            ("--version ensurepip", "-m pip --python .venv/bin/python install --quiet pip"),
            ("--version ensurepip --python", "-m virtualenv"),
        ],
    )
    def test_first_way_that_works_is_taken(self, ready: Tree, broken: str, works: str) -> None:
        ready.dev("demo", BROKEN=broken)
        assert ready.calls(works)
        ways = ["-m venv .venv", "-m ensurepip", "--python .venv/bin/python", "-m virtualenv"]
        later = ways[[way in works for way in ways].index(True) + 1 :]
        assert not [way for way in later if ready.calls(way)]

    def test_uv_is_taken_where_it_is(self, ready: Tree) -> None:
        ready.program("uv", UV)
        ready.dev("demo")
        assert len(ready.calls("uv pip install")) == 2
        assert not ready.calls("-m pip")

    @pytest.mark.parametrize("failing", ["venv", "pip"])
    def test_uv_that_fails_is_followed_by_venv(self, ready: Tree, failing: str) -> None:
        ready.program("uv", UV)
        ready.dev("demo", UV_FAILS=failing)
        assert len(ready.calls("-m pip install")) == 2

    def test_next_interpreter_is_tried_when_one_cannot_make_environments(self, ready: Tree) -> None:
        ready.program("python3.13", PYTHON.replace("venv | virtualenv) ", "venv | virtualenv) exit 1; "))
        ready.dev("demo")
        assert ready.calls("python3 -m venv .venv")

    def test_no_way_gives_one_line(self, ready: Tree) -> None:
        _, err = ready.dev("demo", status=1, BROKEN="venv virtualenv")
        assert "no way to make .venv worked" in err
        assert "python3-venv" in err

    def test_failed_install_is_an_error_and_is_repaired(self, ready: Tree) -> None:
        _, err = ready.dev("demo", status=1, BROKEN="requirements.lock")
        assert "the install of requirements.lock failed" in err
        _, err = ready.dev("demo", status=1, BROKEN="--editable")
        assert "could not be installed" in err
        ready.dev("demo")
        assert len(ready.calls("connectors.cli")) == 1

    @pytest.mark.parametrize("flock", [True, False], ids=["flock", "no flock"])
    def test_killed_install_is_repaired(self, ready: Tree, flock: bool) -> None:
        if not flock:
            (ready.bin / "flock").unlink()
        process = ready.start("demo", INSTALL_SECONDS="60")
        while not ready.calls("requirements.lock"):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        ready.dev("demo")
        assert len(ready.calls("requirements.lock")) == 2
        assert len(ready.calls("connectors.cli")) == 1

    @pytest.mark.parametrize("flock", [True, False], ids=["flock", "no flock"])
    def test_calls_at_once_install_once(self, ready: Tree, flock: bool) -> None:
        if not flock:
            (ready.bin / "flock").unlink()
        processes = [ready.start("demo", INSTALL_SECONDS="0.5") for _ in range(4)]
        for process in processes:
            process.communicate(timeout=60)
            assert process.returncode == 0
        assert len(ready.calls("requirements.lock")) == 1
        assert len(ready.calls("--editable")) == 1
        assert len(ready.calls("connectors.cli")) == 4
        assert not list(ready.root.glob(".venv.lock.*"))


class TestVerbs:
    def test_demo_sees_the_environment_and_nothing_else(self, ready: Tree) -> None:
        image = {"PYTHONDONTWRITEBYTECODE": "1"}
        out, _ = ready.dev("demo", "--json", PYTHONPATH="somewhere", SPARK_HOME="elsewhere", **image)
        python = ready.root / ".venv" / "bin" / "python"
        assert out == f"{ready.javas / 'jdk'} {python} 127.0.0.1 unset unset unset 0\n"
        assert ready.calls("connectors.cli") == ["python -m connectors.cli demo --json"]

    def test_arguments_are_passed_on(self, ready: Tree) -> None:
        ready.dev("test", "-k", "a or b", "tests/unit")
        ready.dev("bench", "fetch", "--rows", "3")
        (ready.root / "tests" / "chaos" / "pubsub.py").touch()
        ready.dev("chaos", "pubsub", "--trials", "3")
        ready.dev("servers", "--port", "1")
        ready.dev("servers", "azurite", "--port", "2")
        assert ready.calls("pytest") == ["python -m pytest -n 4 -k a or b tests/unit"]
        assert ready.calls("fetch") == ["python bench/fetch.py --rows 3"]
        assert ready.calls("chaos") == ["python -m tests.chaos.pubsub --trials 3"]
        assert ready.calls("emulator") == ["python -m connectors.testing.servers.pubsub_emulator --port 1"]
        assert ready.calls("stores") == ["python -m connectors.testing.servers.object_stores azurite --port 2"]

    def test_status_of_the_tests_is_the_status(self, ready: Tree) -> None:
        ready.dev("test", status=1, BROKEN="pytest")

    def test_check_runs_every_step_and_fails_for_any(self, ready: Tree) -> None:
        _, err = ready.dev("check", status=1, BROKEN="format mypy")
        assert err.endswith("dev: check failed: ruff mypy\n")
        assert len(ready.calls("-m ruff")) == 2
        assert len(ready.calls("test_house_rules")) == 1

    def test_benchmarks_are_listed(self, ready: Tree) -> None:
        assert ready.dev("bench")[0] == "fetch\n"
        out, err = ready.dev("bench", "fech", status=2)
        assert (out, "no benchmark named fech" in err) == ("fetch\n", True)
        assert ready.dev("chaos")[0] == "none yet\n"

    def test_docs_writes_the_reference_pages(self, ready: Tree) -> None:
        ready.dev("docs")
        assert ready.calls("reference") == ["python -m tools.reference"]

    def test_docs_with_the_site_ends_with_its_path(self, ready: Tree) -> None:
        assert ready.dev("docs", "--site")[0] == f"{ready.root}/build/site/index.html\n"
        assert ready.calls("tools") == ["python -m tools.reference", "python -m tools.site"]

    def test_docs_with_a_site_that_cannot_be_made_fails_and_names_no_path(self, ready: Tree) -> None:
        assert ready.dev("docs", "--site", status=1, BROKEN="tools.site")[0] == ""


@pytest.mark.parametrize(
    "program",
    [
        "tools/protos.py {folder}",
        "-m connectors.cli --help",
        "-m connectors.cli --version",
        "-m connectors.cli doctor",
        "-m connectors.cli doctor --json",
        "-m connectors.cli spool inspect {folder} --json",
        "-m connectors.cli demo --endpoint localhost --json",
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
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


@pytest.mark.parametrize("name", sorted({path.stem for path in (ROOT / "tests" / "chaos").glob("[!_]*.py")} - PYTESTS))
def test_a_chaos_run_that_is_asked_for_help_runs_nothing_else(name: str) -> None:
    command = [sys.executable, "-m", f"tests.chaos.{name}", "--help"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=30)
    assert done.stdout.startswith(f"usage: ./dev chaos {name} ")
