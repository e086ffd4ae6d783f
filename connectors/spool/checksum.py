"""The one checksum of the spool: XXH3 with 64 bits. It finds damage; it is no defence against an editor with intent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["checksum"]


def checksum(data: Buffer) -> str:
    """The checksum of a buffer, as 16 hexadecimal digits."""
    return f"{xxhash.xxh3_64_intdigest(data):016x}"
