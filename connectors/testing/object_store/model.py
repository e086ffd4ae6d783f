"""What an S3 bucket answers: pure functions of its objects and a request.

From the API reference of Amazon S3: PutObject, GetObject, HeadObject, DeleteObject, DeleteObjects and ListObjectsV2,
each with what obstore's client sends; everything else is refused as NotImplemented.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import parse_qs
from xml.sax.saxutils import escape, unescape

__all__ = ["Answer", "Bucket", "Request", "error"]

_ENTITIES = {"&quot;": '"', "&apos;": "'"}
_XML = '<?xml version="1.0" encoding="UTF-8"?>'


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; header names are in lower case."""

    method: str
    bucket: str
    key: str
    query: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def kind(self) -> str:
        """What it is counted as: its method, or LIST; deletes of many objects are DELETE too."""
        if not self.key:
            return {"GET": "LIST", "POST": "DELETE"}.get(self.method, self.method)
        return self.method

    @property
    def authorization(self) -> str:
        """The header of that name."""
        return self.headers.get("authorization", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def error(status: int, code: str) -> Answer:
    """An error as S3 says it."""
    text = f"{_XML}<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return Answer(status, text.encode(), {"Content-Type": "application/xml"})


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket, over the objects of all: ``bucket/key`` to bytes.

    Args:
        objects: changed by puts and deletes.
        times: when each was put; an object without a time was put at the beginning.
        now: the store's own clock, in seconds since 1970.
        name: of the bucket.
        page: keys a page of a list.
        conditional: whether the conditions of puts count.
    """

    objects: dict[str, bytes]
    times: dict[str, float]
    now: float
    name: str
    page: int = 1000
    conditional: bool = True

    def do(self, request: Request) -> Answer:
        """Do a request."""
        if request.kind == "LIST":
            return self._list(parse_qs(request.query, keep_blank_values=True))
        if request.kind == "DELETE" and request.method == "POST" and request.query == "delete":
            return self._delete(request.body.decode())
        path = f"{self.name}/{request.key}"
        match request.method if request.key and not request.query else "":
            case "PUT":
                return self._put(path, request)
            case "GET" | "HEAD":
                return self._get(path, request.headers.get("range"), head=request.method == "HEAD")
            case "DELETE":
                self.objects.pop(path, None)
                return Answer(204)
            case _:
                return error(501, "NotImplemented")

    def _put(self, path: str, request: Request) -> Answer:
        found = self.objects.get(path)
        wanted = request.headers.get("if-match")
        if self.conditional:
            if request.headers.get("if-none-match") == "*" and found is not None:
                return error(412, "PreconditionFailed")
            if wanted is not None and found is None:
                return error(404, "NoSuchKey")
            if wanted is not None and found is not None and wanted != _etag(found):
                return error(412, "PreconditionFailed")
        self.objects[path], self.times[path] = request.body, self.now
        return Answer(200, b"", {"ETag": _etag(request.body)})

    def _get(self, path: str, wanted: str | None, *, head: bool) -> Answer:
        data = self.objects.get(path)
        if data is None:
            return Answer(404) if head else error(404, "NoSuchKey")
        headers = {"ETag": _etag(data), "Last-Modified": formatdate(self.times.get(path, 0), usegmt=True)}
        if head or wanted is None:
            return Answer(200, data, {**headers, "Content-Length": str(len(data))})
        first, end = _range(wanted, len(data))
        if first >= end:
            return error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
        return Answer(206, data[first:end], headers)

    def _delete(self, wanted: str) -> Answer:
        keys = re.findall(r"<Key>(.*?)</Key>", wanted)
        for key in keys:
            self.objects.pop(f"{self.name}/{unescape(key, _ENTITIES)}", None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        text = f'{_XML}<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{deleted}</DeleteResult>'
        return Answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _list(self, query: Mapping[str, list[str]]) -> Answer:
        def given(name: str) -> str:
            return query.get(name, [""])[0]

        prefix, delimiter = given("prefix"), given("delimiter")
        after = max(base64.b64decode(given("continuation-token")).decode(), given("start-after"))
        start = len(self.name) + 1
        keys = sorted(path[start:] for path in self.objects if path.startswith(f"{self.name}/{prefix}"))
        entries: dict[str, str] = {}
        for key in keys:
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            shown = prefix + head + delimiter if found else key
            if shown > after and shown not in entries:
                entries[shown] = self._prefix(shown) if found else self._contents(key)
        shown_now = list(entries)[: min(self.page, int(given("max-keys") or 1000))]
        more = ""
        if len(shown_now) < len(entries):
            token = base64.b64encode(shown_now[-1].encode()).decode()
            more = f"<NextContinuationToken>{token}</NextContinuationToken>"
        text = "".join(
            (
                f'{_XML}<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
                f"<Name>{escape(self.name)}</Name><Prefix>{escape(prefix)}</Prefix>",
                f"<KeyCount>{len(shown_now)}</KeyCount><IsTruncated>{'true' if more else 'false'}</IsTruncated>{more}",
                *(entries[shown] for shown in shown_now),
                "</ListBucketResult>",
            )
        )
        return Answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _contents(self, key: str) -> str:
        path = f"{self.name}/{key}"
        data = self.objects[path]
        modified = datetime.fromtimestamp(self.times.get(path, 0), UTC).isoformat(timespec="milliseconds")
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>{modified.replace('+00:00', 'Z')}</LastModified>"
            f"<ETag>{escape(_etag(data))}</ETag><Size>{len(data)}</Size></Contents>"
        )

    @staticmethod
    def _prefix(shown: str) -> str:
        return f"<CommonPrefixes><Prefix>{escape(shown)}</Prefix></CommonPrefixes>"


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _range(wanted: str, length: int) -> tuple[int, int]:
    """The first byte and the one after the last of a ``Range`` header."""
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    if not first:
        return max(length - int(last), 0), length
    return int(first), min(int(last) + 1, length) if last else length
