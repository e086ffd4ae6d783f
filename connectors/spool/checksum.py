"""The one checksum of the spool: XXH3 with 64 bits. It finds damage; it is no defence against an editor with intent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["checksum"]


def checksum(*parts: Buffer) -> str:
    """The checksum of some bytes, as 16 hexadecimal digits: of one buffer, or of several one after the other."""
    if len(parts) == 1:
        return f"{xxhash.xxh3_64_intdigest(parts[0]):016x}"
    running = xxhash.xxh3_64()
    for part in parts:
        running.update(part)
    return running.hexdigest()
