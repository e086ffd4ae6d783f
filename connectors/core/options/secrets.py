"""Where the value of a secret option comes from."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from connectors.core.errors import OptionError

__all__ = ["resolve_secret"]

_SECRET_FILE_BYTES: Final = 1 << 20
_LINES: Final = str.maketrans("", "", "\r\n\t")


def resolve_secret(
    option: str, text: str, environ: Mapping[str, str], connector: str, *, multiline: bool = False
) -> str:
    """Return a secret without white space around it: the text itself, or what ``env:NAME`` or ``file:PATH`` names.

    Files and variables often end with a line end, and HTTP clients print a header that holds one.

    Args:
        option: the name of the option, for errors.
        text: as the user wrote it.
        environ: the environment that ``env:NAME`` is read from.
        connector: the name of the connector, for errors.
        multiline: whether the secret may have several lines, as a key in PEM.

    Raises:
        OptionError: it cannot be read, or holds a character that does not print.
    """

    def printable(value: str) -> str:
        bad = next((one for one in (value.translate(_LINES) if multiline else value) if not one.isprintable()), None)
        if bad is None:
            return value
        what = f"The secret {option} holds the character U+{ord(bad):04X}, which does not print"
        raise OptionError("OPTION_ILLEGAL", what, connector, "Give the secret without it.")

    return printable(_read(option, printable(text.strip()), environ, connector).strip())


def _read(option: str, text: str, environ: Mapping[str, str], connector: str) -> str:
    def unreadable(what: str, action: str) -> OptionError:
        return OptionError("OPTION_SECRET_UNREADABLE", f"The secret {option} {what}", connector, action)

    source, _, name = text.partition(":")
    if source == "env":
        if not environ.get(name, "").strip():
            raise unreadable(
                f"names the environment variable {name}, which is not set or empty",
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
            with path.open(encoding="utf-8", newline="") as file:
                secret = file.read(_SECRET_FILE_BYTES).strip()
        except OSError as error:
            raise unreadable(f"names the file {path}, which cannot be read ({error.strerror})", advice) from None
        except UnicodeDecodeError:
            raise unreadable(f"names the file {path}, which is not UTF-8 text", advice) from None
        if not secret:
            raise unreadable(f"names the file {path}, which is empty", advice)
        return secret
    return text
