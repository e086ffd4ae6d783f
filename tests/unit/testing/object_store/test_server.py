"""The object store for tests does what S3 does, and misbehaves as it is told to; by plain HTTP, without a client."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from connectors.testing.object_store import ObjectStoreServer


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes
    headers: dict[str, str]


def ask(address: str, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
    with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, named)
        found = connection.getresponse()
        return Reply(found.status, found.read(), {name.lower(): value for name, value in found.getheaders()})


@pytest.fixture
def server() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


def test_a_lost_answer_is_one_to_a_request_that_was_done(server: ObjectStoreServer) -> None:
    server.lose_answers("PUT", after=1)
    assert ask(server.address, "PUT", "/b/1", b"x").status == 200
    with pytest.raises(http.client.RemoteDisconnected):
        ask(server.address, "PUT", "/b/2", b"x")
    assert server.objects["b/2"] == b"x"
    assert ask(server.address, "PUT", "/b/3", b"x").status == 200


def test_a_refused_request_is_not_done_and_counts(server: ObjectStoreServer) -> None:
    server.refuse("PUT", 503, "SlowDown", count=2)
    assert [ask(server.address, "PUT", "/b/1", b"x").status for _ in range(2)] == [503, 503]
    assert server.objects == {}
    server.refuse("PUT", 503, "SlowDown")
    server.heal()
    assert ask(server.address, "PUT", "/b/1", b"x").status == 200
    assert server.counts == {"PUT": 3}


def test_only_the_buckets_and_the_key_that_were_named_are_let_in() -> None:
    with ObjectStoreServer(buckets=["mine"], access_key="me") as server:
        authorization = "AWS4-HMAC-SHA256 Credential=me/20260101/us-east-1/s3/aws4_request"
        assert ask(server.address, "PUT", "/mine/1", b"x").status == 403
        assert ask(server.address, "PUT", "/mine/1", b"x", Authorization=authorization).status == 200
        assert ask(server.address, "PUT", "/other/1", b"x", Authorization=authorization).status == 404
