"""protoc reads hostile texts in a process of its own, within limits, and its messages are returned."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from connectors.core.errors import ConnectorError
from connectors.core.processes.protoc import FOREIGN_LIMITS, place_of, run_protoc

ORDER = 'syntax = "proto3"; message Order { string id = 1; }'
DEEP = (
    'syntax = "proto3"; import "google/protobuf/descriptor.proto"; message A { optional A a = 1; }\n'
    "extend google.protobuf.FileOptions { optional A a = 50000; } option (a) = {"
)


def compiled(folder: Path, text: str, **limits: int) -> tuple[bool, str]:
    (folder / "x.proto").write_text(text)
    arguments = [f"-I{folder}", f"--descriptor_set_out={folder}/x.desc", f"{folder}/x.proto"]
    return run_protoc(arguments, {**FOREIGN_LIMITS, **limits}, 600)


def test_a_text_is_compiled_and_a_refusal_has_its_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert compiled(tmp_path, ORDER) == (True, "")
    assert (tmp_path / "x.desc").exists()
    accepted, printed = compiled(tmp_path, ORDER.replace("string", "strin") + "\nmessage {}")
    assert not accepted
    place, what, more = place_of(printed)
    assert (place, what, more) == (f"{tmp_path}/x.proto:2:9", "Expected message name.", 0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("depth", [100, 5000, 200_000])
def test_a_text_that_overflows_the_stack_ends_protoc_alone(depth: int, tmp_path: Path) -> None:
    accepted, printed = compiled(tmp_path, DEEP + "a{" * depth + "}" * depth + "};")
    assert not accepted
    assert printed in {"it was ended by SIGSEGV", "it was ended by SIGABRT"}
    assert not list(tmp_path.glob("core*"))


def test_a_text_that_needs_more_than_its_time_or_memory_ends_protoc_alone(tmp_path: Path) -> None:
    large = ORDER + "".join(f"message M{number} {{ string f = 1; }}\n" for number in range(200_000))
    assert compiled(tmp_path, large, RLIMIT_CPU=300) == (True, "")
    assert compiled(tmp_path, large, RLIMIT_CPU=1) in [
        (False, f"it was ended by {name}") for name in ("SIGKILL", "SIGXCPU")
    ]
    assert compiled(tmp_path, large, RLIMIT_AS=200 << 20)[0] is False


def test_a_compiler_that_does_not_start_is_no_fault_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(ConnectorError, match=r"PROTOC_FAILED.*FileNotFoundError"):
        compiled(tmp_path, ORDER)
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho ImportError: no compiler >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ConnectorError, match=r"PROTOC_FAILED.*ImportError: no compiler"):
        compiled(tmp_path, ORDER)
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(ConnectorError, match=r"PROTOC_FAILED.*no end in time"):
        run_protoc([], seconds=0.1)
