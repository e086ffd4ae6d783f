"""Why packages of npm cannot be had is said in a sentence; no registry is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.servers.node_packages import MANIFESTS, node_packages


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    program(tmp_path / "bin", "node", "exit 0")
    return tmp_path


def test_without_node_the_reason_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home / "empty"))
    assert "install the packages nodejs and npm" in node_packages("kinesis-local").reason


def test_refusal_of_npm_is_the_reason_and_leaves_nothing_that_counts(home: Path) -> None:
    program(home / "bin", "npm", "echo 'npm error code E404' >&2; exit 1")
    assert node_packages("kinesis-local").reason == "npm cannot install kinesis-local: npm error code E404"
    program(home / "bin", "npm", "mkdir -p node_modules/kinesis-local")
    assert node_packages("kinesis-local").reason == ""


def test_second_call_finds_what_the_first_installed(home: Path) -> None:
    program(home / "bin", "npm", f"mkdir -p node_modules/kinesis-local; echo x >>{home / 'runs'}")
    first = node_packages("kinesis-local")
    assert (first.modules / "kinesis-local").is_dir()
    assert node_packages("kinesis-local") == first
    assert (home / "runs").read_text() == "x\n"


@pytest.mark.parametrize("name", sorted(folder.name for folder in MANIFESTS.iterdir()))
def test_lock_file_pins_by_hash_and_names_no_registry(name: str) -> None:
    lock = json.loads((MANIFESTS / name / "package-lock.json").read_text())
    packages = [each for path, each in lock["packages"].items() if path]
    assert packages
    for package in packages:
        assert package["integrity"].startswith("sha512-")
        assert "resolved" not in package
