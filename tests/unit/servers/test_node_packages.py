"""The packages of npm that test servers need are pinned."""

from __future__ import annotations

import json

import pytest

from tests.servers.node_packages import MANIFESTS


@pytest.mark.parametrize("name", sorted(folder.name for folder in MANIFESTS.iterdir()))
def test_lock_file_pins_by_hash_and_names_no_registry(name: str) -> None:
    lock = json.loads((MANIFESTS / name / "package-lock.json").read_text())
    packages = [each for path, each in lock["packages"].items() if path]
    assert packages
    for package in packages:
        assert package["integrity"].startswith("sha512-")
        assert "resolved" not in package
