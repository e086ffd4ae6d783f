"""The command line of .proto files: ``connectors protos build``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from connectors.cli.errors import console, named_errors
from connectors.core.errors import ConnectorError

__all__ = ["build_descriptor_set", "protos_commands"]

protos_commands = typer.Typer(no_args_is_help=True, help="Descriptor sets for from_protobuf and to_protobuf.")

_PLACE = re.compile(r"^(.+?\.proto:\d+(?::\d+)?): (.*)", re.MULTILINE)


@protos_commands.callback()
def commands() -> None:
    """Descriptor sets for from_protobuf and to_protobuf."""


@protos_commands.command("build")
def build_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Holds the .proto files; imports begin here.")],
    *,
    output: Annotated[Path | None, typer.Option(help="The file to write; FOLDER.desc here, if absent.")] = None,
    include: Annotated[
        list[Path] | None, typer.Option("--include", "-I", help="One more folder where imports are. Repeatable.")
    ] = None,
) -> None:
    """Compile all .proto files of a folder, with what they import, into one descriptor set.

    Imports of protobuf itself, google/protobuf/..., are found without --include.
    """
    target = output or Path(f"{folder.resolve().name}.desc")
    with named_errors(extra="protos"):
        files, warnings = build_descriptor_set(folder, target, include or [])
    if warnings:
        console(stderr=True).print(Text(warnings))
    console(soft_wrap=True).print(Text(f"{target}: {files} files and what they import"))


def build_descriptor_set(folder: Path, target: Path, includes: list[Path]) -> tuple[int, str]:
    """Write a descriptor set; return how many files it was made of, and what protoc warned of.

    Raises:
        ConnectorError: there is no .proto file, protoc refuses one, or the target cannot be written.
    """
    import grpc_tools  # type: ignore[import-untyped]  # noqa: PLC0415 - needs the extra protos

    sources = sorted(str(path) for path in folder.rglob("*.proto") if path.is_file())
    if not sources:
        raise ConnectorError(
            "PROTOS_NOT_FOUND", "There is no .proto file", str(folder), "Name the folder where imports begin."
        )
    folders = (folder, *includes, Path(grpc_tools.__file__).parent / "_proto")
    options = ["--include_imports", f"--descriptor_set_out={target}", *(f"-I{each}" for each in folders)]
    # In a process of its own: protoc writes to the standard error of the process, not to Python's.
    done = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *options, *sources], capture_output=True, text=True, check=False
    )
    said = done.stderr.strip()
    if done.returncode:
        first = _PLACE.search(said)
        where, what = first.groups() if first else (str(target), said)
        more = len(_PLACE.findall(said)) - 1
        raise ConnectorError(
            "PROTOS_REFUSED",
            f"protoc says: {what}{f' (and {more} more)' if more > 0 else ''}",
            where,
            "Correct the file; a folder where imports are is given by --include."
            if first
            else "Let --output name a file that can be written.",
        )
    return len(sources), said
