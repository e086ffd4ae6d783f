"""The file that the option credentialsFile names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from connectors.pubsub.credentials import unusable

__all__ = ["read_key_file"]


def read_key_file(path: Path) -> dict[str, Any]:
    """What a key file holds.

    Raises:
        CredentialsError: it cannot be read, or is no JSON object.
    """
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unusable(path, f"cannot be read ({error.strerror})") from None
    except ValueError:
        raise unusable(path, "is not JSON") from None
    if not isinstance(info, dict):
        raise unusable(path, "is not a JSON object")
    return info
