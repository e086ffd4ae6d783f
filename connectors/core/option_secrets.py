"""Where the value of a secret option comes from."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from connectors.core.errors import OptionError

__all__ = ["resolve_secret"]

_SECRET_FILE_BYTES: Final = 1 << 20


def resolve_secret(option: str, text: str, environ: Mapping[str, str], connector: str) -> str:
    """A secret's value: the text itself, or what ``env:NAME`` or ``file:PATH`` names.

    Raises:
        OptionError: that cannot be read.
    """

    def unreadable(what: str, action: str) -> OptionError:
        return OptionError("OPTION_SECRET_UNREADABLE", f"The secret {option} {what}", connector, action)

    source, _, name = text.partition(":")
    if source == "env":
        if not environ.get(name):
            raise unreadable(
                f"names the environment variable {name}, which is not set",
                "Set it for the driver before the Spark session starts.",
            )
        return environ[name]
    if source == "file":
        path = Path("/" + name.lstrip("/")) if name.startswith("/") else Path(name)
        advice = "Give file: and the absolute path of a file that the driver can read."
        if not path.is_absolute():
            raise unreadable(f"names the file {name}, which is a relative path", advice)
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise unreadable(f"names {path}, which is not a regular file", advice)
            with path.open(encoding="utf-8") as file:
                secret = file.read(_SECRET_FILE_BYTES).strip()
        except OSError as error:
            raise unreadable(f"names the file {path}, which cannot be read ({error.strerror})", advice) from None
        except UnicodeDecodeError:
            raise unreadable(f"names the file {path}, which is not UTF-8 text", advice) from None
        if not secret:
            raise unreadable(f"names the file {path}, which is empty", advice)
        return secret
    return text
