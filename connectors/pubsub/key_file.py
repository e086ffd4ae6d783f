"""The file that the option credentialsFile names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from connectors.core.errors import CredentialsError

__all__ = ["bad_key_file", "read_key_file"]


def read_key_file(path: Path) -> dict[str, Any]:
    """What a key file holds.

    Raises:
        CredentialsError: it cannot be read, or is no JSON object.
    """
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise bad_key_file(path, f"cannot be read ({error.strerror})") from None
    except ValueError:
        raise bad_key_file(path, "is not JSON") from None
    if not isinstance(info, dict):
        raise bad_key_file(path, "is not a JSON object")
    return info


def bad_key_file(path: Path, what: str) -> CredentialsError:
    """The error for a key file of no use; nothing of its content is shown."""
    return CredentialsError(
        "CREDENTIALS_UNREADABLE",
        f"The file that the option credentialsFile names {what}",
        str(path),
        "Give the path of a key file, as it was downloaded, that driver and fetchers can read.",
    )
