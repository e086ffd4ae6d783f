"""A front for emulators of Google Cloud Storage that have only its JSON API: requests of the XML API, handed on.

Its own are only the names of things. Puts become uploads, with ``x-goog-if-generation-match`` as ``ifGenerationMatch``;
the emulator checks that condition. Objects, heads and deletes go through, and lists come back as XML.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

from tests.servers.object_stores.base import HOST

__all__ = ["serve_xml"]

_SECONDS = 60.0
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_CODES = {404: "NoSuchKey", 412: "PreconditionFailed"}
_PASSED_ON = {"content-length", "content-range", "content-type", "etag", "last-modified", "x-goog-generation"}
_LIST_WORDS = {
    "prefix": "prefix",
    "delimiter": "delimiter",
    "continuation-token": "pageToken",
    "max-keys": "maxResults",
}


@contextmanager
def serve_xml(port: int, behind: int) -> Iterator[None]:
    """Serve the XML API on a port of this machine, for an emulator on another port of it."""
    server = _XmlServer((HOST, port), _Handler)
    server.behind = behind
    serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    serving.start()
    try:
        yield
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


class _XmlServer(ThreadingHTTPServer):
    """The server of the XML API."""

    daemon_threads = True
    block_on_close = False
    behind: int
    """The port of the emulator."""


class _Response:
    """A response of the emulator."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> dict[str, Any]:
        """Return its body."""
        value: dict[str, Any] = json.loads(self.body)
        return value


class _Emulator:
    """A connection to the emulator; for one thread."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=_SECONDS)

    def call(
        self, method: str, path: str, query: Mapping[str, str], body: bytes = b"", headers: Mapping[str, str] = {}
    ) -> _Response:
        """Send a request of the JSON API."""
        self._connection.request(method, f"{path}?{urlencode(query)}", body, dict(headers))
        got = self._connection.getresponse()
        return _Response(got.status, dict(got.headers), got.read())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _listed(answer: dict[str, Any]) -> bytes:
    """Return a list of the JSON API as the XML API has it."""
    contents = "".join(
        f"<Contents><Key>{escape(item['name'])}</Key><Generation>{item['generation']}</Generation>"
        f"<LastModified>{item['updated']}</LastModified><ETag>{escape(item['etag'])}</ETag>"
        f"<Size>{item['size']}</Size></Contents>"
        for item in answer.get("items", ())
    )
    prefixes = "".join(
        f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>" for prefix in answer.get("prefixes", ())
    )
    token = answer.get("nextPageToken")
    more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
    truncated = f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>"
    return f"{_XML}<ListBucketResult>{truncated}{more}{contents}{prefixes}</ListBucketResult>".encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body go out in two writes; without this the second one waits for the client's delayed ack.
    disable_nagle_algorithm = True
    server: _XmlServer

    def setup(self) -> None:
        super().setup()
        self.emulator = _Emulator(self.server.behind)

    def finish(self) -> None:
        self.emulator.close()
        super().finish()

    def do_PUT(self) -> None:
        bucket, name = self._named()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = {"uploadType": "media", "name": name}
        if condition := self.headers.get("x-goog-if-generation-match"):
            query["ifGenerationMatch"] = condition
        content = {"Content-Type": self.headers.get("Content-Type") or "application/octet-stream"}
        got = self.emulator.call("POST", f"/upload/storage/v1/b/{bucket}/o", query, body, content)
        if got.status != http.client.OK:
            self._refuse(got.status)
            return
        made = got.json()
        self._answer(200, {"ETag": f'"{made["etag"]}"', "x-goog-generation": made["generation"]})

    def do_GET(self) -> None:
        bucket, name = self._named()
        if not name:
            self._list(bucket)
            return
        wanted = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
        path = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        got = self.emulator.call(self.command, path, {"alt": "media"}, headers=wanted)
        if got.status >= http.client.BAD_REQUEST:
            self._refuse(got.status)
            return
        passed_on = {key: value for key, value in got.headers.items() if key.lower() in _PASSED_ON}
        self._answer(got.status, passed_on, got.body)

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def do_DELETE(self) -> None:
        bucket, name = self._named()
        got = self.emulator.call("DELETE", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}", {})
        if got.status >= http.client.BAD_REQUEST:
            self._refuse(got.status)
            return
        self._answer(http.client.NO_CONTENT, {})

    def _named(self) -> tuple[str, str]:
        bucket, _, name = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        return bucket, name

    def _list(self, bucket: str) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        query = {word: asked[key][0] for key, word in _LIST_WORDS.items() if key in asked}
        got = self.emulator.call("GET", f"/storage/v1/b/{bucket}/o", query)
        if got.status != http.client.OK:
            self._refuse(got.status)
            return
        self._answer(got.status, {"Content-Type": "application/xml"}, _listed(got.json()))

    def _refuse(self, status: int) -> None:
        code = _CODES.get(status, "InvalidArgument")
        self._answer(status, {"Content-Type": "application/xml"}, f"{_XML}<Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if "Content-Length" not in headers and status != http.client.NO_CONTENT:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing."""
