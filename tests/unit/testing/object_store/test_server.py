"""The object store for tests does what S3 does, and misbehaves as it is told to; by plain HTTP, without a client."""

from __future__ import annotations

import http.client
import re
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


def names(reply: Reply, tag: str) -> list[str]:
    return re.findall(f"<{tag}>(.*?)</{tag}>", reply.body.decode())


@pytest.fixture
def server() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


def test_a_put_that_must_not_replace_does_not(server: ObjectStoreServer) -> None:
    assert ask(server.address, "PUT", "/b/k", b"1", If_None_Match="*").status == 200
    refused = ask(server.address, "PUT", "/b/k", b"2", If_None_Match="*")
    assert (refused.status, names(refused, "Code")) == (412, ["PreconditionFailed"])
    assert ask(server.address, "GET", "/b/k").body == b"1"


def test_a_put_replaces_only_the_version_that_it_names(server: ObjectStoreServer) -> None:
    assert ask(server.address, "PUT", "/b/k", b"1", If_Match='"x"').status == 404
    first = ask(server.address, "PUT", "/b/k", b"1").headers["etag"]
    second = ask(server.address, "PUT", "/b/k", b"2", If_Match=first).headers["etag"]
    assert ask(server.address, "PUT", "/b/k", b"3", If_Match=first).status == 412
    assert ask(server.address, "HEAD", "/b/k").headers["etag"] == second != first


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [("bytes=2-4", 206, b"234"), ("bytes=7-", 206, b"789"), ("bytes=-3", 206, b"789"), ("bytes=5-99", 206, b"56789")],
)
def test_a_range_is_a_part(server: ObjectStoreServer, wanted: str, status: int, body: bytes) -> None:
    ask(server.address, "PUT", "/b/k", b"0123456789")
    found = ask(server.address, "GET", "/b/k", Range=wanted)
    assert (found.status, found.body) == (status, body)
    assert found.headers["content-range"].endswith("/10")


def test_a_list_goes_on_with_its_token_and_groups_by_the_delimiter(server: ObjectStoreServer) -> None:
    server.page = 2
    for key in ("a/1", "a/2", "a/3", "a/x/1", "a/x/2", "ab", "a/%26"):
        ask(server.address, "PUT", f"/b/{key}", b"x")
    keys: list[str] = []
    folders: list[str] = []
    query = "/b?list-type=2&prefix=a/&delimiter=/"
    more = query
    while more:
        page = ask(server.address, "GET", more)
        found, inside = names(page, "Key"), names(page, "Prefix")[1:]
        assert len(found) + len(inside) <= 2
        keys, folders = keys + found, folders + inside
        token = names(page, "NextContinuationToken")
        more = f"{query}&continuation-token={token[0]}" if token else ""
    assert keys == ["a/&amp;", "a/1", "a/2", "a/3"]
    assert folders == ["a/x/"]


def test_one_and_many_objects_are_deleted(server: ObjectStoreServer) -> None:
    for key in "123":
        ask(server.address, "PUT", f"/b/{key}", b"x")
    assert ask(server.address, "DELETE", "/b/1").status == 204
    many = b"<Delete><Object><Key>2</Key></Object><Object><Key>9</Key></Object></Delete>"
    assert ask(server.address, "POST", "/b?delete", many).status == 200
    assert list(server.objects) == ["b/3"]
    assert server.counts == {"PUT": 3, "DELETE": 2}


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
