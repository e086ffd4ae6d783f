"""A schema registry on loopback that speaks Confluent's REST interface, and misbehaves when told to.

    with SchemaRegistryServer() as registry:
        schema_id = registry.register("orders-value", descriptor_set, "orders.proto")
        from_protobuf("value", schemaRegistry={"address": registry.address, "subject": "orders-value"})

``python -m connectors.testing registry --port N --schema orders-value=orders.desc`` runs it as a program.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from connectors.testing.process import announce, server_parser, stop_event

__all__ = ["SchemaRegistryServer"]


@dataclass(frozen=True, slots=True)
class _Version:
    schema_id: int
    guid: str
    subject: str
    version: int
    schema_type: str
    serialized: str
    text: str
    references: tuple[dict[str, Any], ...]
    rule_set: Any = None
    deleted: bool = False

    @property
    def context(self) -> str:
        return _context(self.subject)

    @property
    def content(self) -> tuple[object, ...]:
        return self.schema_type, self.serialized, self.text, self.references, json.dumps(self.rule_set)

    def answer(self, *, serialized: bool, with_subject: bool = True) -> dict[str, Any]:
        return {
            **({"subject": self.subject, "version": self.version} if with_subject else {}),
            "id": self.schema_id,
            "guid": self.guid,
            "schemaType": self.schema_type,
            "schema": self.serialized if serialized and self.serialized else self.text,
            "references": list(self.references),
            **({} if self.rule_set is None else {"ruleSet": self.rule_set}),
        }


@dataclass(frozen=True, slots=True)
class _Response:
    data: bytes
    byte_seconds: float


def _context(subject: str) -> str:
    """Return the context of a subject, such as ``:.staging:``; empty for the default one."""
    found = re.match(r":(\.[^:]*):?", subject)
    return f":{found[1]}:" if found and found[1] != "." else ""


def _own_name(subject: str) -> str:
    """Return a subject without its context."""
    return re.sub(r"^:\.[^:]*:?", "", subject)


def _normal(subject: str) -> str:
    return _context(subject) + _own_name(subject)


class SchemaRegistryServer:
    """The server; a context manager.

    Contexts are as in Confluent's: each counts its own ids, a subject names its context (``:.staging:orders``), an id
    is one of the default context unless ``?subject=`` names another, and a path may begin with ``/contexts/.staging``.
    GUIDs are the same in all contexts.

    Args:
        host: the address of loopback that it listens on.
        port: the port; 0 for any free one.
        tls: the settings of a server that speaks https; None for http.
        interface: answers requests, with what was sent to it, instead of Confluent's interface.

    Attributes:
        address: its URL.
        requests: the paths that were asked for, in order, with POST or PUT before those to which something was sent.
        authorizations: the Authorization header of each request; None where there was none.
        credentials: what the Authorization header must be; None for anything.
        fail_serialized: the HTTP status of each request for a serialized schema, as of registries without them; or 0.
        clients: ids and secrets of the clients that get tokens where a path ends with ``/token``, as in ``token_url``.
        token_seconds: how long a token lives; the registry refuses it afterwards.
        tokens: the tokens that were given, in order; take one out, and the registry refuses it.
        token_forms: the form of each request for a token.
        required_headers: headers that each request to the registry must have, such as ``target-sr-cluster``.
        headers: the headers of each request to the registry, with names in lower case.
        registers_id_only: whether the response to a registration is the id alone, as of older registries.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
        interface: Callable[[BaseHTTPRequestHandler, bytes | None], None] | None = None,
    ) -> None:
        self.requests: list[str] = []
        self.authorizations: list[str | None] = []
        self.credentials: str | None = None
        self.clients: dict[str, str] = {}
        self.token_seconds = 3600.0
        self.tokens: dict[str, float] = {}
        self.token_forms: list[dict[str, str]] = []
        self.required_headers: dict[str, str] = {}
        self.headers: list[dict[str, str]] = []
        self.fail_serialized = 0
        self.registers_id_only = False
        self._interface = interface or self._answer_rightly
        self._responses: dict[str, _Response] = {}
        self._stopped = threading.Event()
        self._versions: list[_Version] = []
        self._failures: list[int] = []
        self._next_ids: dict[str, int] = {}
        self._lock = threading.Lock()
        self._server = bound_server(host, port, self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.address = f"{'http' if tls is None else 'https'}://{host}:{self._server.server_port}"
        self.token_url = f"{self.address}/token"

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def register(
        self,
        subject: str,
        files: bytes = b"",
        main: str = "",
        *,
        text: str = "",
        references: tuple[tuple[str, str, int], ...] = (),
        schema_type: str = "PROTOBUF",
        schema_id: int | None = None,
        rule_set: Any = None,
    ) -> int:
        """Add a version to a subject, and give its id.

        Args:
            subject: the subject.
            files: a descriptor set that holds the schema's file; empty for a registry that knows only the text.
            main: the name of that file.
            text: the text of the .proto file.
            references: what it imports: name of the import, subject, version.
            schema_type: AVRO and JSON are there too in real registries.
            schema_id: the id of a schema that another subject has already; None for a new one.
            rule_set: its ``ruleSet``.
        """
        subject = _normal(subject)
        serialized = ""
        if files:
            found = next(file for file in FileDescriptorSet.FromString(files).file if file.name == main)
            serialized = base64.b64encode(found.SerializeToString()).decode()
        with self._lock:
            version = 1 + sum(each.subject == subject for each in self._versions)
            listed = tuple({"name": name, "subject": other, "version": number} for name, other, number in references)
            context = _context(subject)
            next_id = self._next_ids.get(context, 1)
            number = next_id if schema_id is None else schema_id
            added = _Version(number, "", subject, version, schema_type, serialized, text, listed, rule_set)
            guids = (
                each.guid
                for each in self._versions
                if (each.schema_id == schema_id if each.context == context else each.content == added.content)
            )
            self._versions.append(replace(added, guid=next(guids, str(uuid.uuid4()))))
            self._next_ids[context] = next_id + (schema_id is None)
            return number

    def delete(self, subject: str, version: int | None = None) -> None:
        """Soft-delete a version of a subject, or all: then only ids, GUIDs and requests for deleted ones find it."""
        with self._lock:
            self._versions = [
                replace(each, deleted=True)
                if each.subject == _normal(subject) and version in {None, each.version}
                else each
                for each in self._versions
            ]

    def guid(self, schema_id: int, context: str = "") -> bytes:
        """The GUID of a schema, as it stands in a frame; the context is such as ``:.staging:``."""
        guids = (each.guid for each in self._versions if (each.schema_id, each.context) == (schema_id, context))
        return uuid.UUID(next(guids)).bytes

    def fail(self, *statuses: int) -> None:
        """Answer the next requests with these HTTP statuses; 0 closes the connection without an answer."""
        with self._lock:
            self._failures += statuses

    def respond(
        self,
        path: str,
        status: int = 200,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        byte_seconds: float = 0.0,
    ) -> None:
        """Give the same response to each request for a path, instead of the right one.

        Args:
            path: the path without its query; ``*`` for every path.
            status: the HTTP status.
            body: the body.
            headers: headers; Content-Length is added where there is none.
            byte_seconds: how long to wait before each byte of the response, its head included.
        """
        sent_headers = {"Content-Length": str(len(body)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in sent_headers.items())
        data = f"HTTP/1.1 {status} Told\r\n{head}\r\n".encode() + body
        with self._lock:
            self._responses[path] = _Response(data, byte_seconds)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry._answer(self)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if urlsplit(self.path).path.endswith("/token"):
                    registry._answer_token(self, body.decode())
                else:
                    registry._answer(self, body)

            def do_PUT(self) -> None:
                self.do_POST()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base class's name
                """Print nothing."""

        return Handler

    def _answer_token(self, request: BaseHTTPRequestHandler, body: str) -> None:
        """Give a token by the client credentials grant, as of RFC 6749."""
        form = {name: values[0] for name, values in parse_qs(body).items()}
        login = (request.headers.get("Authorization") or "").removeprefix("Basic ")
        name, _, secret = base64.b64decode(login).decode().partition(":")
        with self._lock:
            self.token_forms.append(form)
            response = self._responses.get("/token")
        if response is not None:
            self._write(request, response)
        elif form.get("grant_type") != "client_credentials":
            _send(request, 400, {"error": "unsupported_grant_type"})
        elif not secret or self.clients.get(name) != secret:
            _send(request, 401, {"error": "invalid_client", "error_description": f"no client {name} with {secret}"})
        else:
            token = f"token-{len(self.token_forms)}-{uuid.uuid4().hex}"
            self.tokens[token] = time.monotonic() + self.token_seconds
            answer = {"access_token": token, "token_type": "Bearer", "expires_in": self.token_seconds}
            _send(request, 200, answer)

    def _accepts(self, headers: Mapping[str, str]) -> bool:
        if any(headers.get(name.lower()) != value for name, value in self.required_headers.items()):
            return False
        authorization = headers.get("authorization", "")
        if self.clients:
            return self.tokens.get(authorization.removeprefix("Bearer "), 0.0) > time.monotonic()
        return self.credentials is None or authorization == self.credentials

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes | None = None) -> None:
        with self._lock:
            self.requests.append(request.path if body is None else f"{request.command} {request.path}")
            self.authorizations.append(request.headers.get("Authorization"))
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            response = self._responses.get(urlsplit(request.path).path, self._responses.get("*"))
            failure = self._failures.pop(0) if self._failures else None
        if failure == 0:
            request.close_connection = True
            return
        if response is not None:
            self._write(request, response)
        elif failure is not None:
            _send(request, failure, {"error_code": failure * 100, "message": "told to fail"})
        elif not self._accepts({name.lower(): value for name, value in request.headers.items()}):
            _send(request, 401, {"error_code": 401, "message": "Unauthorized"})
        else:
            self._interface(request, body)

    def _answer_rightly(self, request: BaseHTTPRequestHandler, body: bytes | None) -> None:
        posted = None if body is None else json.loads(body)
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        serialized = query.get("format") == "serialized"
        if serialized and self.fail_serialized:
            _send(request, self.fail_serialized, {"error_code": 50001, "message": "Internal server error"})
            return
        path = _without_context([unquote(part) for part in url.path.split("/")[1:]], query)
        if path[0] == "subjects" and path[2:] == ["versions"] and posted is None:
            numbers = self._numbers(path[1], deleted=query.get("deleted") == "true")
            _send(request, 200 if numbers else 404, numbers or {"error_code": 40401, "message": "Subject not found"})
            return
        found = self._find(path, query) if posted is None else self._find_posted(path, posted)
        if found is None:
            _send(request, 404, {"error_code": 40403, "message": "Schema not found"})
        elif posted is not None and path[2:] and self.registers_id_only:
            _send(request, 200, {"id": found.schema_id})
        else:
            with_subject = path[0] == "subjects" or (path[1] == "ids" and "subject" in query)
            _send(request, 200, found.answer(serialized=serialized, with_subject=with_subject))

    def _find_posted(self, path: list[str], posted: dict[str, Any]) -> _Version | None:
        """Return the version of a subject with this schema; it is added where the path is that of all versions."""
        text, kind = posted["schema"], posted.get("schemaType", "AVRO")
        match path:
            case ["subjects", subject]:
                register = False
            case ["subjects", subject, "versions"]:
                register = True
            case _:
                return None
        subject = _normal(subject)
        with self._lock:
            equal = [
                each
                for each in self._versions
                if (each.text, each.schema_type, each.context) == (text, kind, _context(subject))
            ]
            before = [each for each in self._versions if each.subject == subject]
        own = [each for each in equal if each.subject == subject and not each.deleted]
        if not own and register:
            rules = before[-1].rule_set if before else None  # a new version has those of the one before it
            same = [each for each in equal if each.rule_set == rules]
            schema_id = same[0].schema_id if same else None
            self.register(subject, text=text, schema_type=kind, schema_id=schema_id, rule_set=rules)
            return self._find(["subjects", subject, "versions", "latest"], {})
        return own[0] if own else None

    def _numbers(self, subject: str, *, deleted: bool) -> list[int]:
        own = [each for each in self._versions if each.subject == _normal(subject)]
        return [each.version for each in own if deleted or not each.deleted]

    def _write(self, request: BaseHTTPRequestHandler, response: _Response) -> None:
        request.close_connection = True
        step = 1 if response.byte_seconds else len(response.data)
        for place in range(0, len(response.data), step):
            if response.byte_seconds and self._stopped.wait(response.byte_seconds):
                return
            request.wfile.write(response.data[place : place + step])

    def _find(self, path: list[str], query: Mapping[str, str]) -> _Version | None:
        with self._lock:
            match path:
                case ["schemas", "ids", schema_id]:
                    same = [each for each in self._versions if str(each.schema_id) == schema_id]
                    found = _in_contexts(same, query.get("subject", ""))
                    found = found or [each for each in same if each.context == _context(query.get("subject", ""))]
                case ["schemas", "guids", guid]:
                    found = sorted(
                        (each for each in self._versions if each.guid == guid), key=lambda each: not each.context
                    )
                case ["subjects", subject, "versions", version]:
                    deleted = query.get("deleted") == "true" and version != "latest"
                    served = [each for each in self._versions if deleted or not each.deleted]
                    of_subject = _in_contexts(served, subject)
                    found = [each for each in of_subject if version in {"latest", "-1", str(each.version)}]
                case _:
                    found = []
            return found[-1] if found else None


def _in_contexts(versions: list[_Version], subject: str) -> list[_Version]:
    """Return those of a subject; of one without a context that the default one has not, those of any other."""
    own = [each for each in versions if each.subject == _normal(subject)]
    if own or _context(subject) or not subject:
        return own
    return [each for each in versions if _own_name(each.subject) == subject]


def _without_context(path: list[str], query: dict[str, str]) -> list[str]:
    """Return a path without the context that it begins with, which goes into the subject of path or query."""
    if path[0] != "contexts" or not path[2:]:
        return path
    context, rest = f":.{path[1].strip(':').removeprefix('.')}:", path[2:]
    if rest[0] == "subjects" and rest[1:] and not rest[1].startswith(":."):
        rest[1] = context + rest[1]
    elif rest[:2] == ["schemas", "ids"] and not query.get("subject", "").startswith(":."):
        query["subject"] = context + query.get("subject", "")
    return rest


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients are expected to leave in the middle of a response, or of a TLS handshake."""


def bound_server(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Bind a server; to port 0 on one that no server of this process has had.

    A client remembers schemas, since they never change under an id: it would take a new registry for an earlier one.
    """
    server = _Server((host, port), handler)
    with ExitStack() as refused:
        while port == 0 and server.server_port in _ports:
            refused.callback(server.server_close)  # not before another one is found: the system may offer it again
            server = _Server((host, 0), handler)
    _ports.add(server.server_port)
    return server


_ports: set[int] = set()


def _send(request: BaseHTTPRequestHandler, status: int, answer: object) -> None:
    body = json.dumps(answer).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def _register_file(server: SchemaRegistryServer, subject: str, path: Path) -> int:
    """Register the text of a .proto file, or the last file of a descriptor set with what that imports."""
    data = path.read_bytes()
    if path.suffix == ".proto":
        return server.register(subject, text=data.decode())
    try:
        files = FileDescriptorSet.FromString(data).file
    except DecodeError:
        raise ValueError(f"{path} is neither a .proto file nor a descriptor set") from None
    own = [file for file in files if not file.name.startswith("google/protobuf/")]
    if not own:
        raise ValueError(f"{path} is not a descriptor set, or holds no file of yours")
    names = {file.name for file in own}
    for file in own:
        references = tuple((name, name, 1) for name in file.dependency if name in names)
        schema_id = server.register(subject if file is own[-1] else file.name, data, file.name, references=references)
    return schema_id


def main(arguments: list[str] | None = None) -> int:
    """Run the server until SIGTERM or SIGINT; its URL and the ids of the schemas go to standard output."""
    parser = server_parser("registry", "A schema registry for tests, in memory, on 127.0.0.1.")
    parser.add_argument(
        "--schema",
        action="append",
        default=[],
        metavar="SUBJECT=FILE",
        help="register a .proto file without imports, or a descriptor set (protoc --include_imports); may be repeated",
    )
    options = parser.parse_args(arguments)
    stopping = stop_event(with_parent=options.exit_with_parent)
    try:
        with SchemaRegistryServer(port=options.port) as server:
            ids = {}
            for subject, _, path in (schema.partition("=") for schema in options.schema):
                ids[f"schema id of {subject}"] = str(_register_file(server, subject, Path(path)))
            endpoint = server.address.removeprefix("http://")
            announce(endpoint, {"address": server.address, **ids}, {"SCHEMA_REGISTRY_URL": server.address})
            stopping.wait()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
