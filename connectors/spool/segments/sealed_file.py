"""Sealed files: sections of bytes, then a footer that names each with its checksum, then a tail.

    section | section | ... | footer (JSON) | tail (32 bytes)

The tail is: checksum of the footer (16 hexadecimal digits), length of the footer, format version, magic of the kind.
The checksum of the footer covers those of all sections, so it is the digest by which the ledger recognises the file.

The one checksum of the spool is XXH3 with 64 bits. It detects damage, not an editor with intent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import xxhash

from connectors.core.errors import SpoolDamagedError
from connectors.spool.errors import other_version
from connectors.spool.store.base import Blobs, Pieces

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Published", "SealedKind", "SealedReader", "SealedWriter", "checksum", "published_of", "wider"]

FORMAT_VERSION = 1
_TAIL = struct.Struct("<16sII8s")

Published = tuple[int, int] | None
"""Lowest and highest publish time of some messages, microseconds since 1970; None if it is not known."""


def published_of(value: Sequence[int] | None) -> Published:
    """Return a range of publish times from its JSON value."""
    return None if value is None else (value[0], value[1])


def wider(one: Published, other: Published) -> Published:
    """Return the range of publish times that covers both ranges."""
    if one is None or other is None:
        return other if one is None else one
    return min(one[0], other[0]), max(one[1], other[1])


def checksum(*parts: Buffer) -> str:
    """Return the checksum of some buffers, one after the other, as 16 hexadecimal digits."""
    if len(parts) == 1:
        return f"{xxhash.xxh3_64_intdigest(parts[0]):016x}"
    running = xxhash.xxh3_64()
    for part in parts:
        running.update(part)
    return running.hexdigest()


@dataclass(frozen=True, slots=True)
class SealedKind:
    """A kind of sealed file: the last 8 bytes of its files, and what its errors say.

    `code` is the beginning of its error codes, `stake` what is lost with a file; `whole` says that all of a file is
    read when it is opened.
    """

    magic: bytes
    label: str
    code: str
    stake: str
    action: str
    whole: bool = True


class SealedWriter:
    """A sealed file that is being written under a temporary name."""

    def __init__(self, store: Blobs, name: str, kind: SealedKind) -> None:
        self._kind = kind
        self._sections: list[dict[str, Any]] = []
        self._file = store.writer(name)

    def section(self, kind: str, data: Buffer, **more: int) -> None:
        """Append a section; its entry in the footer gets `more`."""
        view = memoryview(data).cast("B")
        offset = self._file.length
        self._file.write(view)
        self._sections.append({"kind": kind, "offset": offset, "length": len(view), "checksum": checksum(view), **more})

    def publish(self, fields: dict[str, Any]) -> str | None:
        """Write the footer with these fields and publish the file; return its digest, None if the name is taken."""
        footer = {"v": FORMAT_VERSION, **fields, "sections": self._sections}
        text = json.dumps(footer, sort_keys=True, separators=(",", ":")).encode()
        digest = checksum(text)
        self._file.write(text)
        self._file.write(_TAIL.pack(digest.encode(), len(text), FORMAT_VERSION, self._kind.magic))
        published = self._file.publish()
        self._file.discard()
        return digest if published else None

    def discard(self) -> None:
        """Discard the file, unless it was published."""
        self._file.discard()


class SealedReader:
    """A sealed file; its footer is checked when it is opened, a section when it is read.

    Raises:
        SpoolDamagedError: it is missing or damaged, or its digest is not the one of the ledger (None: any).
        SpoolVersionError: it was written by another version.
    """

    def __init__(self, store: Blobs, name: str, kind: SealedKind, digest: str | None) -> None:
        self._kind = kind
        self._where = f"{store.root}/{name}"
        try:
            self.data: Pieces = store.map(name) if kind.whole else store.pieces(name)
        except FileNotFoundError:
            self.damaged("is missing")
        self.footer, self.digest = self._read_footer()
        if digest is not None and digest != self.digest:
            self.damaged("is not the one that the ledger names")
        self.sections: list[dict[str, Any]] = self.footer["sections"]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the sections of a kind, in order."""
        return [section for section in self.sections if section["kind"] == kind]

    def checked(self, section: dict[str, Any]) -> memoryview:
        """Return the bytes of a section after checking them."""
        try:
            view = self.data[section["offset"] : section["offset"] + section["length"]]
        except FileNotFoundError:
            self.damaged("is missing")
        if checksum(view) != section["checksum"]:
            self.damaged(f"has a wrong checksum in its {section['kind']} at byte {section['offset']}")
        return view

    def verify(self) -> None:
        """Check every section."""
        for section in self.sections:
            self.checked(section)

    def damaged(self, what: str) -> NoReturn:
        """Raise the error of a damaged file."""
        kind = self._kind
        raise SpoolDamagedError(
            f"{kind.code}_DAMAGED", f"{kind.label} {what}; {kind.stake}", self._where, kind.action
        ) from None

    def _read_footer(self) -> tuple[dict[str, Any], str]:
        end = len(self.data) - _TAIL.size
        if end < 0:
            self.damaged("is too short")
        digest, length, version, magic = _TAIL.unpack(self.data[end:])
        if magic != self._kind.magic:
            self.damaged("does not end as it should")
        if version != FORMAT_VERSION:
            kind = self._kind
            raise other_version(f"{kind.code}_VERSION", kind.label, version, FORMAT_VERSION, self._where)
        text = self.data[max(end - length, 0) : end]
        actual = checksum(text)
        if actual.encode() != digest:
            self.damaged("has a footer with a wrong checksum")
        footer: dict[str, Any] = json.loads(bytes(text))
        starts = [section["offset"] for section in footer["sections"]]
        ends = [section["offset"] + section["length"] for section in footer["sections"]]
        if [*starts, end - length] != [0, *ends]:
            self.damaged("has sections that do not fill it")
        return footer, actual
