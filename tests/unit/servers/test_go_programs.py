"""Why a program in Go cannot be had is said in a sentence; no module proxy is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.go_programs import GO_MODULES, go_program

PINNED = GO_MODULES["versitygw"]
SHOWN = f"\tmod\t{PINNED.module}\t{PINNED.version}\t{PINNED.checksum}"


def install_go(home: Path, install: str, shown: str = SHOWN) -> None:
    """A `go` that runs a script for an install, and says `shown` of any program."""
    folder = home / "bin"
    folder.mkdir(exist_ok=True)
    script = f"if [ $1 = version ]; then printf '%s\\n' '{shown}'; exit; fi\necho \"$*\" >>{home / 'calls'}\n{install}"
    (folder / "go").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "go").chmod(0o755)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path


def test_refusal_of_go_is_the_reason_and_leaves_nothing_that_counts(home: Path) -> None:
    install_go(home, "echo 'go: downloading' >&2; echo 'go: 404 Not Found' >&2; exit 1")
    assert go_program("versitygw").reason == "Go cannot build versitygw: go: 404 Not Found"
    install_go(home, "touch $GOBIN/versitygw")
    assert go_program("versitygw").reason == ""


def test_second_call_finds_what_the_first_built_of_the_pinned_version(home: Path) -> None:
    install_go(home, "touch $GOBIN/versitygw")
    first = go_program("versitygw")
    assert Path(first.path).is_file()
    assert go_program("versitygw") == first
    assert (home / "calls").read_text() == f"install {PINNED.module}/cmd/versitygw@{PINNED.version}\n"


def test_source_with_another_checksum_is_refused(home: Path) -> None:
    install_go(home, "touch $GOBIN/versitygw", SHOWN.replace("h1:", "h1:x"))
    assert "does not have the checksum" in go_program("versitygw").reason


def test_a_program_has_its_own_name_whatever_go_calls_it(home: Path) -> None:
    pinned = GO_MODULES["toxiproxy"]
    install_go(home, "touch $GOBIN/server", f"\tmod\t{pinned.module}\t{pinned.version}\t{pinned.checksum}")
    found = go_program("toxiproxy")
    assert Path(found.path).is_file()
    assert Path(found.path).name == "toxiproxy"
