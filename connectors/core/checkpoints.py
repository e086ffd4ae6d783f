"""What a checkpoint of Spark says of its sources, read from outside; a running query is not disturbed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from connectors.core.errors import OffsetError
from connectors.core.offsets import is_sentinel

__all__ = ["is_new", "newest_offsets"]

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # with one slash: it is what a Path makes of a URL


def is_new(checkpoint: Path) -> bool:
    """Whether a query would make the folder, or fill an empty one; of a URL, that cannot be told from here."""
    if _URL.match(str(checkpoint)):
        return False
    try:
        return not any(checkpoint.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False  # reading its offsets says why


def newest_offsets(checkpoint: Path) -> list[Mapping[str, Any]]:
    """The offsets of the newest batch, one a source (Spark's OffsetSeqLog: a version, metadata, then a line each).

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
