"""Commands for spools, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from connectors.cli.main import app
from connectors.core.errors import SpoolError
from connectors.core.offsets import SENTINEL
from connectors.spool.segments.segment import SEGMENT, SealedReader
from tests.support.spool_streams import open_stream, rows_of
from tests.support.spool_writing import HandSpool

NO_LIMIT = (1 << 63) - 1


def run(*arguments: object, answer: str | None = None, code: int = 0, columns: int = 200) -> Result:
    result = CliRunner().invoke(app, ["spool", *map(str, arguments)], input=answer, env={"COLUMNS": str(columns)})
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments: object, code: int = 0) -> dict[str, Any]:
    value = json.loads(run(*arguments, "--json", code=code).stdout)
    assert isinstance(value, dict)
    return value


def everything(root: Path) -> dict[str, tuple[bytes, int, int]]:
    """Content, time and mode of every file, the times of folders too: nothing of it may be touched."""
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns, path.stat().st_mode)
        for path in [root, *root.rglob("*")]
    }


def lasting(spool: HandSpool) -> dict[str, bytes]:
    """The files of a spool in use, less those that its query writes in the background."""
    return {name: data for name, data in spool.files().items() if not name.startswith(("tmp/", "ledger/"))}


def flip(spool: HandSpool, name: str, kind: str) -> None:
    section = SealedReader(spool.store, name, SEGMENT, None).of_kind(kind)[0]
    data = bytearray((spool.root / name).read_bytes())
    data[section["offset"] + section["length"] // 2] ^= 1
    (spool.root / name).write_bytes(data)


def read_all(spool: HandSpool) -> list[str]:
    with open_stream(spool.root, starting_position="earliest") as stream:
        end = stream.latest_offset(SENTINEL, NO_LIMIT)
        return [text for _, text in rows_of(spool.root, stream.partitions(SENTINEL, end))]


def code_of(spool: HandSpool) -> str:
    """The code of the error that a query on the spool stops with; empty if it runs."""
    try:
        read_all(spool)
    except SpoolError as error:
        return error.code
    return ""
