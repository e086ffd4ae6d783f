"""Hostile attempts by services: schema registries, event streams, and the texts of errors."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connectors.core.errors import error_from_json
from connectors.kafka.client.errors import named_error
from connectors.kinesis.client.client import MessageBuffer, parse_event, parse_page
from connectors.kinesis.client.errors import service_error
from connectors.protobuf.confluent.registry import protobuf_registry
from connectors.pubsub.client.errors import RpcCall, connector_error
from connectors.pubsub.options.client import Transport
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.chaos.rigs.hostile_attempts import SAME, Attempt, Kind, assert_clean
from tests.support.alterations import VALUES
from tests.support.event_streams import damaged, event_message
from tests.support.hostile_answers import (
    BASIC,
    DEEP_OPTION,
    ODD_SCHEMAS,
    hostile_text,
)
from tests.support.protobuf_rig import schema_by_id

__all__ = ["SERVICES"]

LATEST = "/subjects/basic/versions/latest"
OK = b"HTTP/1.1 200 OK\r\n\r\n"


@contextmanager
def registry(_folder: Path) -> Iterator[Attempt]:
    """Whole responses of a registry: odd JSON, bombs, drip, redirects, hostile texts of errors."""
    bomb = gzip.compress(b'{"schema":"' + b"x" * (200 << 20) + b'"}')
    ids = itertools.count(10)  # a schema that was given once is not asked for again
    with SchemaRegistryServer() as server:
        asked = protobuf_registry(
            parse_registry_options({"address": server.address, "retry.timeout": "0", "request.timeout": "2s"})
        )

        def attempt() -> dict[str, int]:
            status, body, headers, drip = 200, b"", {}, 0.0
            match random.randrange(100):
                case 0:
                    body, headers = bomb, {"Content-Encoding": "gzip"}
                case 1:
                    drip, body = 0.01, b" " * 10_000
                case 2:
                    body, headers = b"x" * (5 << 20), {"Content-Length": str(1 << 40)}
                case number if number < 20:
                    status = random.choice([400, 401, 403, 404, 409, 422, 429, 500, 503, 999])
                    body = json.dumps({"error_code": 1, "message": hostile_text()}).encode()
                case number if number < 30:
                    status, headers = 302, {"Location": random.choice([LATEST, "http://[", "//127.0.0.1:1/x", "\x7f"])}
                case number if number < 60:
                    body = random.choice(ODD_SCHEMAS).encode()
                case _:
                    body = json.dumps(_schema_response()).encode()
            server.respond("*", status, body, headers, byte_seconds=drip)
            if random.random() < 0.5:
                asked.latest("basic")
            else:
                schema_by_id(asked, next(ids))
            return {"accepted": 1}

        yield attempt


def _schema_response() -> dict[str, Any]:
    """A response for a schema, with values that are none and references to whatever there is."""
    name = random.choice(
        ["../../etc/passwd", "/etc/passwd", "@x", "-x.proto", "a\0b", "main.proto", hostile_text(), ""]
    )
    found: dict[str, Any] = {"id": 1, "schemaType": "PROTOBUF", "schema": "", "subject": "basic", "references": []}
    found["schema"] = base64.b64encode(random.randbytes(random.randint(0, 50))).decode()
    found["references"] = [{"name": name, "subject": random.choice(["basic", name]), "version": 1}] * random.randint(
        0, 3
    )
    found[random.choice([*found])] = random.choice([*VALUES, hostile_text()])
    return found


@contextmanager
def registry_texts(_folder: Path) -> Iterator[Attempt]:
    """Texts that protoc compiles: nested options, imports by hostile names, cycles, garbage."""
    numbers = itertools.count()
    with SchemaRegistryServer() as server:
        asked = protobuf_registry(parse_registry_options({"address": server.address, "retry.timeout": "0"}))

        def attempt() -> dict[str, int]:
            subject = f"s{next(numbers)}"
            name = random.choice(["../x.proto", "/etc/passwd", "@x.proto", "-x.proto", "a\nb.proto", "x.proto"])
            imported = BASIC.replace("package", f"import {json.dumps(name)}; package")
            texts = [
                DEEP_OPTION.replace("a{" * 5000, "a{" * 50).replace("}" * 5000, "}" * 50),
                DEEP_OPTION,
                imported,
                BASIC.replace("int64", hostile_text()),
                BASIC[: random.randrange(len(BASIC))],
                BASIC + "message" * random.randint(1, 1000) + hostile_text(),
                BASIC.replace("int64 id = 1;", "message M {" * 500 + "}" * 500),
            ]
            text = random.choice(texts).encode(errors="replace").decode()
            references = ((name, random.choice([subject, "s0"]), 1),) if text == imported else ()
            server.register(subject, text=text, references=references)
            asked.latest(subject)
            return {"accepted": 1}

        yield attempt


@contextmanager
def event_streams(_folder: Path) -> Iterator[Attempt]:
    """Messages of enhanced fan-out and responses of GetRecords: damaged frames, wrong checksums, altered values."""

    def body() -> dict[str, Any]:
        record = {"SequenceNumber": "7", "Data": "eA==", "PartitionKey": "k", "ApproximateArrivalTimestamp": 1.5}
        found: dict[str, Any] = {"Records": [record], "MillisBehindLatest": 0, "ContinuationSequenceNumber": "8"}
        target = random.choice([record, found, found])
        names = [*target, "ChildShards", "NextShardIterator"]
        values = [*VALUES, "", "-1", "²", "1" * 5000, "abc", 1e308, "\ud800", hostile_text(), "[" * 100_000]
        target[random.choice(names)] = random.choice(values)
        return found

    def attempt() -> dict[str, int]:
        payload = json.dumps(body()).replace("Infinity", "1e400").encode()
        if random.random() < 0.3:
            records = parse_page(payload, 0, "shard").records
        else:
            data = event_message(payload, {":message-type": "event", ":event-type": "SubscribeToShardEvent"})
            data = damaged(data) if random.random() < 0.7 else data
            records, buffer = [], MessageBuffer()
            for at in range(0, len(data), 1000):
                for message in buffer.feed(data[at : at + 1000]):
                    records += parse_event(message.payload, "shard").records
        for record in records:
            assert (record.number >= 0, record.arrival_ms is not None) == (True, True)
        return {"read": 1}

    yield attempt


NAMES = ("AccessDeniedException", "ValidationException", "InternalFailure", "ExpiredToken", "KMSDisabledException")
STATUSES = (
    "PERMISSION_DENIED",
    "UNAVAILABLE",
    "UNAUTHENTICATED",
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "NOT_FOUND",
)
OF_BROKERS = (
    "_TRANSPORT",
    "TOPIC_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "_SSL",
    "_FATAL",
    "INVALID_CONFIG",
)


def _kinesis_error() -> Exception:
    name = random.choice([*NAMES, hostile_text()])
    response = {"Error": {"Code": name, "Message": hostile_text()}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return service_error("GetRecords", "orders", response)


def _pubsub_error() -> Exception:
    call = RpcCall("StreamingPull", "projects/p/subscriptions/s", Transport("localhost:1", secure=True, local=False))
    return connector_error(call, random.choice(STATUSES), hostile_text())


def _kafka_error() -> Exception:
    name = random.choice([*OF_BROKERS, hostile_text()])
    return named_error(name, hostile_text(), "orders", retriable=random.random() < 0.5)


@contextmanager
def texts(_folder: Path) -> Iterator[Attempt]:
    """Texts of errors from services, as our errors show them."""
    makers: list[Callable[[], Any]] = [_kinesis_error, _pubsub_error, _kafka_error]

    def attempt() -> dict[str, int]:
        error = random.choice(makers)()
        for each in (error, error_from_json(json.loads(json.dumps(error.to_json())))):
            assert_clean(str(each))
            assert each.code.isascii(), ascii(each.code)
            assert "\n" not in each.what + each.where
        return SAME

    yield attempt


SERVICES = {
    "registry": Kind("responses of schema registries", registry),
    "registry_texts": Kind("schemas as texts", registry_texts),
    "event_streams": Kind("event streams and responses of Kinesis", event_streams),
    "texts": Kind("texts of services", texts),
}
