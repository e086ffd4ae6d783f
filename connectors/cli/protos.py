"""The command line of .proto files: ``connectors protos build``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.text import Text

from connectors.cli.errors import console, named_errors
from connectors.cli.proto_roots import find_roots
from connectors.core.errors import ConnectorError
from connectors.core.processes.protoc import place_of, run_protoc

protos_commands = typer.Typer(no_args_is_help=True, help="Descriptor sets for from_protobuf and to_protobuf.")


@protos_commands.callback()
def commands() -> None:
    """Descriptor sets for from_protobuf and to_protobuf."""


@protos_commands.command("build")
def build_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Holds the .proto files.")],
    *,
    output: Annotated[Path | None, typer.Option(help="The file to write; FOLDER.desc here, if absent.")] = None,
    include: Annotated[
        list[Path] | None, typer.Option("--include", "-I", help="One more folder where imports are. Repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", help="Files to leave out, such as 'v1/*'. Repeatable.")
    ] = None,
) -> None:
    """Compile all .proto files of a folder, with what they import, into one descriptor set.

    Where imports begin is found by the imports: FOLDER, a folder in it such as third_party, or one of --include. Of
    equal copies one is taken. Imports of protobuf itself, google/protobuf/..., are found without --include.
    """
    target = output or Path(f"{folder.resolve().name}.desc")
    with named_errors(extra="protos"):
        files, warnings = build_descriptor_set(folder, target, include or [], exclude or [])
    if warnings:
        console(stderr=True).print(Text(warnings))
    console(soft_wrap=True).print(Text(f"{target}: {files} files and what they import"))


def build_descriptor_set(
    folder: Path, target: Path, includes: Sequence[Path], excludes: Sequence[str] = ()
) -> tuple[int, str]:
    """Write a descriptor set; return how many files it was made of, and what protoc warned of.

    Raises:
        ConnectorError: there is no .proto file, one has a name that is none, two files have one name, protoc refuses
            one, or the target cannot be written.
    """
    import grpc_tools  # type: ignore[import-untyped]  # noqa: PLC0415 - needs the extra protos

    # Absolute: protoc takes a name that begins with - for an option, and one with @ for a file of options.
    given = {Path(os.path.abspath(path)): path for path in (folder, *includes)}  # noqa: PTH100 - resolve() follows links
    top = next(iter(given))
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in _sources(folder, top, excludes)}
    brought = Path(grpc_tools.__file__).parent / "_proto"
    plan = find_roots(texts, tuple(given), (path.relative_to(brought).as_posix() for path in brought.rglob("*.proto")))
    if plan.collisions:
        one, other = plan.collisions[0]
        raise ConnectorError(
            "PROTOS_COLLIDE",
            f"{_shown(str(one), given)} and {_shown(str(other), given)} are imported by one name and differ",
            str(folder),
            "Leave one of them out by --exclude, or compile their folders one by one.",
        )
    options = ["--include_imports", f"--descriptor_set_out={target.absolute()}", *(f"-I{root}" for root in plan.roots)]
    for name in plan.files:
        _refuse_argument(name, folder)
    with TemporaryDirectory() as empty:  # there, protoc takes a name as that below a root
        accepted, printed = run_protoc([*options, *plan.files], folder=empty)
    printed = _shown(_by_path(printed, plan.files), given)
    if not accepted:
        place, what, more = place_of(printed)
        raise ConnectorError(
            "PROTOS_REFUSED",
            f"protoc says: {what}{f' (and {more} more)' if more else ''}",
            place or str(target),
            _advice(place, what),
        )
    return len(plan.files), printed


def _sources(folder: Path, top: Path, excludes: Sequence[str]) -> list[Path]:
    """Return the .proto files of a folder, by absolute path."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*.proto") if path.is_file())
    names = [name for name in names if not any(fnmatch(name.as_posix(), pattern) for pattern in excludes)]
    if not names:
        raise ConnectorError(
            "PROTOS_NOT_FOUND", "There is no .proto file", str(folder), "Name the folder that holds them."
        )
    for name in names:
        _refuse_argument(str(name), folder)
    return [top / name for name in names]


def _by_path(printed: str, files: Mapping[str, Path]) -> str:
    """Return messages of protoc with the paths of files where it gives the names of imports."""
    for name in sorted(files, key=len, reverse=True):
        printed = re.sub(
            rf'(?m)^{re.escape(name)}(?=:)|(?<=in file "){re.escape(name)}(?=")', str(files[name]), printed
        )
    return printed


def _shown(text: str, given: Mapping[Path, Path]) -> str:
    """Return a text with the paths as the user gave them."""
    for absolute, path in given.items():
        text = text.replace(f"{absolute}{os.sep}", "" if path == Path() else f"{path}{os.sep}")
    return text


def _advice(place: str, what: str) -> str:
    if not place:
        return "Let --output name a file that can be written."
    if "is already defined in file" in what:
        return "Both files define it: leave one of them out by --exclude, or compile their folders one by one."
    return "Correct the file; a folder where imports are, outside of this one, is given by --include."


def _refuse_argument(name: str, folder: Path) -> None:
    """Refuse the name of a file that could be taken for an argument, or that no text can hold."""
    if name.startswith(("-", "@")) or not name.isprintable():
        raise ConnectorError(
            "PROTOS_NAME_REFUSED",
            f"The name {name!a} begins with - or @, or holds what cannot be printed",
            str(folder),
            "Rename it, or see who put it there: protoc would take such a name for an argument.",
        )
