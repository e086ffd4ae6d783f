"""What a checkpoint of Spark says of its sources, read from outside; a running query is not disturbed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from connectors.core.errors import OffsetError
from connectors.core.offsets import is_sentinel

__all__ = ["look_at_checkpoint", "newest_offsets"]

T = TypeVar("T")

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # with one slash: it is what a Path makes of a URL


def look_at_checkpoint(checkpoint: Path, look: Callable[[list[Mapping[str, Any]]], T]) -> T | str:
    """Return what a check reads from a checkpoint; of a new query's, that it is not there yet.

    Args:
        checkpoint: the folder.
        look: called with the result of `newest_offsets`.

    Raises:
        OffsetError: it is no checkpoint, or cannot be read.
    """
    if _is_new(checkpoint):
        return f"{checkpoint} is not there yet: a new query"
    return look(newest_offsets(checkpoint))


def _is_new(checkpoint: Path) -> bool:
    """Return whether a query would create or fill the folder; of a URL that is unknown."""
    if _URL.match(str(checkpoint)):
        return False
    try:
        return not any(checkpoint.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False  # reading its offsets says why


def newest_offsets(checkpoint: Path) -> list[Mapping[str, Any]]:
    """Return the offsets of the newest batch, one a source (Spark's OffsetSeqLog: a version, metadata, a line each).

    Raises:
        OffsetError: there is no such log, or it cannot be read.
    """
    log = checkpoint / "offsets"
    try:
        batches = [int(each.name) for each in log.iterdir() if each.name.isdigit()]
        lines = (log / str(max(batches))).read_text(encoding="utf-8").splitlines()[2:] if batches else []
        values = [json.loads(line) for line in lines if line.startswith("{")]
    except (OSError, ValueError) as error:
        raise OffsetError(
            "CHECKPOINT_UNREADABLE",
            f"The offsets of the checkpoint cannot be read: {error}",
            str(log),
            "Give the folder that the option checkpointLocation names.",
        ) from None
    return [value for value in values if isinstance(value, Mapping) and not is_sentinel(value)]
