"""moto's Glue as a server that notes what it is asked, and answers errors on command."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any
from uuid import UUID, uuid4

import boto3

KEYS = {"awsAccessKey": "AKIAIOSFODNN7EXAMPLE", "awsSecretKey": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
"""The keys of the documentation of AWS; moto takes any."""

# By their full names: shop.Box 0, shop.Order 1, shop.Order.Item 2, shop.Order.Item.LabelsEntry 3, shop.Order.Zone 4.
ORDERS_PROTO = """
syntax = "proto3";
package shop;
message Order {
  int64 id = 1;
  message Zone { string name = 1; }
  message Item { int32 count = 1; map<string, string> labels = 2; }
  Item item = 2;
}
message Box { string label = 1; }
"""


@dataclass
class GlueRig:
    """A server with a registry of its own.

    Attributes:
        calls: operations of the registry's clients, in their order.
        faults: status and name of the errors that the next calls get.
    """

    url: str = ""
    registry: str = ""
    calls: list[str] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)

    def create(self) -> None:
        """Create the registry."""
        self.registry = f"registry-{uuid4().hex}"
        self._client.create_registry(RegistryName=self.registry)

    def drop(self) -> None:
        """Delete the registry: moto takes ten."""
        self._client.delete_registry(RegistryId={"RegistryName": self.registry})

    @property
    def options(self) -> dict[str, str]:
        """The dictionary for schemaRegistry."""
        return {
            "type": "glue",
            "region": "us-east-1",
            "registryName": self.registry,
            "endpointUrl": self.url,
            "retry.timeout": "300ms",
            **KEYS,
        }

    def register(self, name: str, text: str, data_format: str = "AVRO") -> str:
        """Add a version to a schema, which is created if it is not there; return its id."""
        called = len(self.calls)
        names = {
            "SchemaId": {"RegistryName": self.registry, "SchemaName": name},
            "SchemaDefinition": text,
        }
        try:
            version = self._client.register_schema_version(**names)
        except self._client.exceptions.EntityNotFoundException:
            version = self._client.create_schema(
                RegistryId={"RegistryName": self.registry},
                SchemaName=name,
                DataFormat=data_format,
                Compatibility="NONE",
                SchemaDefinition=text,
            )
        del self.calls[called:]
        return str(version["SchemaVersionId"])

    def versions(self, name: str) -> int:
        """Return how many versions a schema has."""
        called = len(self.calls)
        schema = self._client.get_schema(SchemaId={"RegistryName": self.registry, "SchemaName": name})
        del self.calls[called:]
        return int(schema["LatestSchemaVersion"])

    @property
    def _client(self) -> Any:
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        return boto3.client("glue", region_name="us-east-1", endpoint_url=self.url, **keys)

    def around(self, application: Any) -> Any:
        """Return a WSGI application that notes calls and answers the faults."""

        def serve(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
            self.calls.append(environment.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2])
            if not self.faults:
                return application(environment, start)  # type: ignore[no-any-return]
            environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
            status, name = self.faults.pop(0)
            body = json.dumps({"__type": name, "message": "by command"}).encode()
            start(
                f"{status} Fault", [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))]
            )
            return [body]

        return serve


@contextmanager
def glue_server() -> Iterator[GlueRig]:
    """Serve moto's Glue on loopback; its state is that of the process, so each rig has a registry of its own."""
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - takes a second that others need not wait
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server  # noqa: PLC0415

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of every call
    rig = GlueRig()
    application = rig.around(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=False)
    serving = Thread(target=server.serve_forever)
    serving.start()
    rig.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield rig
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def header(version: str, compression: int = 0) -> bytes:
    """Return what stands before a message, by the layout of Glue's serializers."""
    return bytes([3, compression]) + UUID(version).bytes
