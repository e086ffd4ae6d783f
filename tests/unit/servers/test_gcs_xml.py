"""The front of fake-gcs-server hands on requests of the XML API, and decides nothing itself.

`tests/contract/test_stores.py` has it with fake-gcs-server behind it, in ``./dev chaos stores``.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.servers.java import free_port
from tests.servers.object_stores.gcs_xml import serve_xml


class Behind:
    """What stands for the emulator: it notes each request, and gives the one answer that it was told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes, str | None]] = []
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b"{}")


@pytest.fixture
def behind() -> Behind:
    return Behind()


@pytest.fixture
def port(behind: Behind) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            behind.requests.append((self.command, self.path, body, self.headers.get("Range")))
            status, headers, body = behind.answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = do_HEAD = do_any  # noqa: N815 - the base class's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as emulator:
        serving = threading.Thread(target=emulator.serve_forever, args=(0.01,))
        serving.start()
        front = free_port()
        with serve_xml(front, emulator.server_port):
            yield front
        emulator.shutdown()
        serving.join()


def call(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()
    finally:
        connection.close()


def test_a_put_goes_on_with_its_condition_and_comes_back_with_its_generation(behind: Behind, port: int) -> None:
    behind.answer = (200, {}, json.dumps({"etag": "abc", "generation": "17"}).encode())
    status, headers, _ = call(port, "PUT", "/spools/a%2Fb%20c", b"bytes", x_goog_if_generation_match="0")
    assert (status, headers["ETag"], headers["x-goog-generation"]) == (200, '"abc"', "17")
    path = "/upload/storage/v1/b/spools/o?uploadType=media&name=a%2Fb+c&ifGenerationMatch=0"
    assert behind.requests == [("POST", path, b"bytes", None)]


@pytest.mark.parametrize(("status", "code"), [(412, b"PreconditionFailed"), (404, b"NoSuchKey")])
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_what_the_emulator_refuses_is_refused(behind: Behind, port: int, method: str, status: int, code: bytes) -> None:
    behind.answer = (status, {}, b'{"error": {}}')
    got = call(port, method, "/spools/a", b"" if method == "PUT" else None)
    assert got[0] == status
    assert code in got[2]


def test_a_piece_of_an_object_goes_through(behind: Behind, port: int) -> None:
    behind.answer = (206, {"Content-Range": "bytes 2-4/9", "Content-Length": "3", "X-Goog-Generation": "17"}, b"cde")
    status, headers, body = call(port, "GET", "/spools/a%2Fb", Range="bytes=2-4")
    assert (status, headers["Content-Range"], headers["X-Goog-Generation"], body) == (206, "bytes 2-4/9", "17", b"cde")
    assert behind.requests == [("GET", "/storage/v1/b/spools/o/a%2Fb?alt=media", b"", "bytes=2-4")]


def test_a_list_comes_back_as_xml_with_the_token_of_the_next_page(behind: Behind, port: int) -> None:
    item = {"name": "a/<1>", "generation": "1", "updated": "2026-01-01T00:00:00Z", "etag": "e", "size": "3"}
    behind.answer = (200, {}, json.dumps({"items": [item], "prefixes": ["a/b/"], "nextPageToken": "t"}).encode())
    status, _, body = call(port, "GET", "/spools?list-type=2&prefix=a%2F&delimiter=%2F&continuation-token=s")
    assert status == 200
    for part in (
        b"<Key>a/&lt;1&gt;</Key>",
        b"<Size>3</Size>",
        b"<Prefix>a/b/</Prefix>",
        b"<NextContinuationToken>t</NextContinuationToken>",
    ):
        assert part in body
    assert behind.requests[0][1] == "/storage/v1/b/spools/o?prefix=a%2F&delimiter=%2F&pageToken=s"


def test_a_delete_is_answered_without_a_body(behind: Behind, port: int) -> None:
    behind.answer = (204, {}, b"")
    assert call(port, "DELETE", "/spools/a")[0::2] == (204, b"")
