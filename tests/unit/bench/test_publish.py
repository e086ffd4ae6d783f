"""What a part of the public set depends on, and when it is measured again."""

from __future__ import annotations

import subprocess

import pytest
from _publish import GIT, OF_ONE_SYSTEM, PARTS, Part

BY_KEY = {part.key: part for part in PARTS}


def git(*arguments: str) -> list[str]:
    """The lines that a command of git prints in this tree."""
    return subprocess.run([*GIT, *arguments], check=True, capture_output=True, text=True).stdout.splitlines()


def files(part: Part) -> set[str]:
    """The files of this tree that a part depends on."""
    return set(git("ls-files", "--", *part.paths))


def test_a_part_depends_on_its_connector_its_program_and_what_all_share() -> None:
    found = files(BY_KEY["limit kinesis-100"])
    assert {
        "bench/limit.py",
        "bench/_common.py",
        "connectors/core/arrow.py",
        "connectors/kinesis/source/records.py",
        "connectors/testing/kinesis/server.py",
        "pyproject.toml",
    } <= found


def test_a_part_does_not_depend_on_other_connectors_nor_on_other_programs() -> None:
    found = files(BY_KEY["limit kinesis-100"])
    assert not [path for path in found if path.startswith(("connectors/kafka/", "connectors/pubsub/"))]
    assert not found & {"bench/_publish.py", "bench/growth.py", "bench/kafka_read.py"}


def test_a_part_depends_on_the_programs_that_its_own_imports_or_starts() -> None:
    assert {"bench/idle.py", "bench/latency_under_load.py", "bench/_load_side.py"} <= files(BY_KEY["idle"])
    assert {"bench/pubsub_decode.py", "bench/pubsub_fetch.py"} <= files(BY_KEY["stages pubsub"])


@pytest.mark.parametrize("system", [name for name in OF_ONE_SYSTEM if name])
def test_each_file_of_a_connector_is_measured_by_some_part(system: str) -> None:
    assert set(git("ls-files", "--", *OF_ONE_SYSTEM[system])) <= set().union(*map(files, PARTS))


def test_a_part_without_a_record_is_not_measured() -> None:
    assert not PARTS[0].is_measured_at("")
    assert not PARTS[0].is_measured_at("a commit that is not there")


def test_a_part_is_measured_again_when_its_connector_has_changed_since() -> None:
    (commit,) = git("log", "-1", "--format=%H", "--", "connectors/kafka")
    assert not BY_KEY["kafka_latency"].is_measured_at(f"{commit}~1")
