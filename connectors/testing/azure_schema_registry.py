"""The REST interface of the Azure Schema Registry, version 2022-10, for a server on loopback.

    azure = AzureSchemaRegistry("shop")
    with SchemaRegistryServer(interface=azure) as server:
        azure.register("shop", "shop.Order", schema)
        from_avro("value", schemaRegistry={"type": "azure", "schema.registry.url": server.address, ...})

What requests and responses look like is from azure-schemaregistry 1.3.0 and its generated client.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["AzureSchemaRegistry"]

_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class _Version:
    schema_id: str
    group: str
    name: str
    number: int
    text: str
    format: str

    @property
    def headers(self) -> dict[str, str]:
        custom = self.format == "Custom"
        return {
            "Content-Type": "text/plain; charset=utf-8" if custom else f"{_JSON}; serialization={self.format}",
            "Schema-Id": self.schema_id,
            "Schema-Version": str(self.number),
            "Schema-Group-Name": self.group,
            "Schema-Name": self.name,
        }


class AzureSchemaRegistry:
    """The schemas of a namespace; give it to `SchemaRegistryServer` as its interface.

    Args:
        groups: the groups that there are.

    Attributes:
        page: how many numbers of versions a response has.
        incompatible: texts of schemas that are refused when they are to be registered.
    """

    def __init__(self, *groups: str) -> None:
        self.page = 100
        self.incompatible: set[str] = set()
        self._groups = groups
        self._versions: list[_Version] = []
        self._lock = threading.Lock()

    def register(self, group: str, name: str, text: str, schema_format: str = "Avro") -> str:
        """Add a version to a schema unless it has this text already; return its id."""
        with self._lock:
            own = self._own(group, name)
            same = [each for each in own if each.text == text]
            if not same:
                same = [_Version(uuid.uuid4().hex, group, name, len(own) + 1, text, schema_format)]
                self._versions += same
            return same[0].schema_id

    def __call__(self, request: BaseHTTPRequestHandler, body: bytes | None) -> None:
        """Answer a request with what was sent to it; None for GET."""
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        path = [unquote(part) for part in url.path.split("/")[1:]]
        if query.get("api-version") != "2022-10":
            _refuse(request, 400, "InvalidRequest", "the api-version is missing, or unknown")
        elif body is not None:
            self._answer_content(request, path, body.decode())
        elif path[2:3] == ["schemas"] and path[4:] == ["versions"]:
            self._answer_versions(request, path, query)
        else:
            self._answer_schema(request, path)

    def _answer_content(self, request: BaseHTTPRequestHandler, path: list[str], text: str) -> None:
        """Answer for a schema by its text: its id, which is new where it is put and not there."""
        kind = request.headers["Content-Type"].partition("; serialization=")[2] or "Custom"
        match request.command, path:
            case "PUT", ["$schemaGroups", group, "schemas", name] if group in self._groups:
                if text in self.incompatible:
                    _refuse(request, 409, "Conflict", "the schema is not compatible with version 1")
                    return
                self.register(group, name, text, kind)
            case "POST", ["$schemaGroups", group, "schemas", name] if name.endswith(":get-id"):
                name = name.removesuffix(":get-id")
            case _:
                _refuse(request, 404, "ItemNotFound", "there is no such group")
                return
        found = [each for each in self._own(group, name) if (each.text, each.format) == (text, kind)]
        if found:
            _send(request, 204, b"", found[0].headers)
        else:
            _refuse(request, 404, "ItemNotFound", "there is no such schema")

    def _answer_versions(self, request: BaseHTTPRequestHandler, path: list[str], query: Mapping[str, str]) -> None:
        numbers = [each.number for each in self._own(path[1], path[3])]
        begin = int(query.get("$skip", "0"))
        if not numbers:
            _refuse(request, 404, "ItemNotFound", "there is no such schema")
            return
        answer: dict[str, object] = {"Value": numbers[begin : begin + self.page]}
        if numbers[begin + self.page :]:
            host = request.headers["Host"]
            link = f"https://{host}{urlsplit(request.path).path}?$skip={begin + self.page}&api-version=2022-10"
            answer["NextLink"] = link
        _send(request, 200, json.dumps(answer).encode(), {"Content-Type": _JSON})

    def _answer_schema(self, request: BaseHTTPRequestHandler, path: list[str]) -> None:
        match path:
            case ["$schemaGroups", "$schemas", schema_id]:
                found = [each for each in self._versions if each.schema_id == schema_id]
            case ["$schemaGroups", group, "schemas", name, "versions", number]:
                found = [each for each in self._own(group, name) if str(each.number) == number]
            case _:
                found = []
        if found:
            _send(request, 200, found[0].text.encode(), found[0].headers)
        else:
            _refuse(request, 404, "ItemNotFound", "there is no such schema")

    def _own(self, group: str, name: str) -> list[_Version]:
        return [each for each in self._versions if (each.group, each.name) == (group, name)]


def _refuse(request: BaseHTTPRequestHandler, status: int, code: str, message: str) -> None:
    error = {"error": {"code": code, "message": message}}
    _send(request, status, json.dumps(error).encode(), {"Content-Type": _JSON})


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    if status != HTTPStatus.NO_CONTENT:
        request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
