"""The one rule of all clients: credentials go over plain http to this machine only, or where the user allows it."""

from __future__ import annotations

from urllib.parse import urlsplit

from connectors.core.errors import OptionError
from connectors.core.options.kinds import is_loopback


def is_plaintext(url: str) -> bool:
    """Return whether a URL is plain http to another machine."""
    parts = urlsplit(url)
    return parts.scheme.lower() == "http" and not is_loopback(parts.hostname or "")


def refuse_plaintext(url: str, source: str, connector: str, action: str, *, allowed: bool = False) -> None:
    """Raise an `OptionError` for plain http to another machine; ``source``, which asks for it, begins the sentence."""
    if is_plaintext(url) and not allowed:
        what = f"{source} asks for plain http to {urlsplit(url).hostname}, which is not this machine"
        raise OptionError("OPTION_CONFLICT", what, connector, action)
