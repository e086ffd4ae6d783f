"""A request that is signed and not sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SignedRequest"]


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request of HTTP, with its signature; it is good for some minutes.

    Attributes:
        url: where to send it.
        headers: the signature among them.
        body: what to send.
        certificates: a file with the authorities that botocore trusts; None for ``http:``.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes
    certificates: str | None
