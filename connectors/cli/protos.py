"""The command line of .proto files: ``connectors protos build``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from connectors.cli.errors import console, named_errors
from connectors.core.errors import ConnectorError
from connectors.core.processes.protoc import place_of, run_protoc

__all__ = ["build_descriptor_set", "protos_commands"]

protos_commands = typer.Typer(no_args_is_help=True, help="Descriptor sets for from_protobuf and to_protobuf.")


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
        ConnectorError: there is no .proto file, one has a name that is none, protoc refuses one, or the target cannot
            be written.
    """
    import grpc_tools  # type: ignore[import-untyped]  # noqa: F401, PLC0415 - needs the extra protos

    sources = sorted(path for path in folder.rglob("*.proto") if path.is_file())
    if not sources:
        raise ConnectorError(
            "PROTOS_NOT_FOUND", "There is no .proto file", str(folder), "Name the folder where imports begin."
        )
    for source in sources:
        _refuse_argument(str(source.relative_to(folder)), folder)
    # Absolute: protoc takes a name that begins with - for an option, and one with @ for a file of options.
    paths = [os.path.abspath(path) for path in (folder, *includes)]  # noqa: PTH100 - resolve() would follow links
    named = [os.path.abspath(source) for source in sources]  # noqa: PTH100 - as above
    options = ["--include_imports", f"--descriptor_set_out={target.absolute()}", *(f"-I{path}" for path in paths)]
    accepted, printed = run_protoc([*options, *named])
    for given, path in zip((folder, *includes), paths, strict=True):
        printed = printed.replace(f"{path}{os.sep}", "" if given == Path() else f"{given}{os.sep}")
    if not accepted:
        place, what, more = place_of(printed)
        raise ConnectorError(
            "PROTOS_REFUSED",
            f"protoc says: {what}{f' (and {more} more)' if more else ''}",
            place or str(target),
            "Correct the file; a folder where imports are is given by --include."
            if place
            else "Let --output name a file that can be written.",
        )
    return len(sources), printed


def _refuse_argument(name: str, folder: Path) -> None:
    """Refuse the name of a file that could be taken for an argument, or that no text can hold."""
    if name.startswith(("-", "@")) or not name.isprintable():
        raise ConnectorError(
            "PROTOS_NAME_REFUSED",
            f"The name {name!a} begins with - or @, or holds what cannot be printed",
            str(folder),
            "Rename it, or see who put it there: protoc would take such a name for an argument.",
        )
