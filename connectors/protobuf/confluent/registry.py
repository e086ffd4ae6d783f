"""Schemas of registries that speak Confluent's REST interface: fetched by id, GUID or subject, with references.

A registry gives a schema as text, or, asked with ``format=serialized``, as a descriptor; text needs protoc, which
comes with grpcio-tools. Schemas stay in the process: a schema never changes under its id.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from connectors.core.errors import ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.core.extras import extra_imports, install_advice, not_installed
from connectors.core.pool import Cache
from connectors.core.processes.protoc import FOREIGN_LIMITS, place_of, run_protoc
from connectors.core.retry import RetryPolicy, retry
from connectors.protobuf.confluent.built_in import add_built_in, built_in_set
from connectors.protobuf.errors import schema_unusable
from connectors.protobuf.options import RegistryOptions
from connectors.protobuf.schema.descriptors import serialized

__all__ = ["RegisteredSchema", "Registry"]

_MOST_LEVELS: Final = 50
_MOST_FILES: Final = 1000
_MOST_BYTES: Final = 16 << 20  # of a schema with all that it imports
_TOO_LARGE: Final = f"with what it imports it is larger than {_MOST_BYTES >> 20} MB"
_MOST_COMPILE_SECONDS: Final = 120
_MOST_SHOWN: Final = 500
_MOST_SCHEMAS: Final = 256  # schemas that a client retains, each with all that it imports
_LARGEST_ID: Final = 2**32 - 1
_UNASSIGNED: Final = "/schemas/ids/0"  # no registry gives out the id 0
_OF_ONE_SCHEMA: Final = {"SCHEMA_NOT_FOUND", "SCHEMA_UNUSABLE"}
_TEXT_SECONDS: Final = 5.0
_OWN: Final = ""
"""Stands for the name of a schema's own file until the names of its imports are known."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema: a descriptor set with all that it imports, and the name of its own file in that."""

    schema_id: int  # -1 where only its GUID is known
    files: bytes
    main: str


def _is_unavailable(result: object) -> bool:
    return isinstance(result, ServiceUnavailableError)


class Registry:
    """A client of a registry; safe to use from several threads."""

    def __init__(self, options: RegistryOptions) -> None:
        with extra_imports("protobuf", "schemaRegistry"):
            from connectors.protobuf.confluent.registry_client import RegistryClient  # noqa: PLC0415 - loads httpx2

        self._options = options
        self._policy = RetryPolicy(deadline_seconds=options.retry_timeout)
        self._schemas = Cache(_MOST_SCHEMAS)
        self._last_served = _UNASSIGNED
        self._next_text = 0.0
        """When a registry that fails may be asked for a text again, by the monotonic clock."""
        self._gives_text_only = False
        self._client = RegistryClient(options)

    def by_ids(
        self, ids: Iterable[int | str], most_failures: int, patience: float | None = None
    ) -> dict[int | str, RegisteredSchema | ConnectorError]:
        """Return several schemas, and for each that cannot be had the reason.

        While the registry answers for others, one that it cannot give is no reason to stop: any bytes can look like an
        id, and some registries answer 5xx for ids that they cannot have given.

        Args:
            ids: ids, and GUIDs of 32 hexadecimal digits, in the order in which to ask for them.
            most_failures: how many may fail before no further one is asked for.
            patience: how many seconds to retry while the registry does not answer; None for `retry.timeout`.
        """
        results: dict[int | str, RegisteredSchema | ConnectorError | None] = dict.fromkeys(ids)
        policy = self._policy if patience is None else RetryPolicy(deadline_seconds=patience)
        end = time.monotonic() + self._options.retry_timeout + self._options.timeout

        def ask() -> None:
            self._ask_once(results, most_failures, end)

        with contextlib.suppress(ServiceUnavailableError):  # it stands in the results
            retry(ask, policy)
        failures = [error for error in results.values() if isinstance(error, ConnectorError)]
        odd = [error for error in failures if not isinstance(error, SourceGoneError)]
        if odd:
            odd.sort(key=_is_unavailable)
            if not self._serves():
                raise odd[-1]
            with contextlib.suppress(ServiceUnavailableError):
                ask()  # the registry may serve again only since then
        asked = {schema: result for schema, result in results.items() if result is not None}
        failed = sum(isinstance(result, ConnectorError) for result in asked.values())
        if odd and len(asked) < len(results) and failed < most_failures:
            raise odd[-1]  # no time was left to ask for these
        return asked

    def _ask_once(
        self, results: dict[int | str, RegisteredSchema | ConnectorError | None], most_failures: int, end: float
    ) -> None:
        """Ask for each schema without a result, and for each for which the registry did not answer."""
        failures = sum(
            isinstance(result, ConnectorError) and not _is_unavailable(result) for result in results.values()
        )
        trouble: ConnectorError | None = None
        for schema, result in tuple(results.items()):
            if result is not None and not _is_unavailable(result):
                continue
            if failures >= most_failures or (trouble is not None and time.monotonic() > end):
                break
            try:
                results[schema] = self._by_id(schema)
            except ConnectorError as error:
                if _is_unavailable(error):
                    trouble = error
                elif error.code not in _OF_ONE_SCHEMA:
                    raise
                results[schema] = error
                failures += 1
        if trouble is not None:
            raise trouble

    def _by_id(self, schema: int | str) -> RegisteredSchema:
        path, what = f"/schemas/ids/{schema}", f"schema id {schema}"
        if isinstance(schema, str):
            path, what = f"/schemas/guids/{UUID(schema)}", f"schema GUID {UUID(schema)}"

        def ask() -> RegisteredSchema:
            return self._schema(self._ask(path, what), what, schema if isinstance(schema, int) else -1)

        registered = self._schemas.get(path, ask)
        self._last_served = path
        return registered

    def _serves(self) -> bool:
        """Return whether the registry answers for schemas: the last one that it gave, or one that nobody has."""
        try:
            self._ask(self._last_served, "schema")
        except ConnectorError as error:
            return isinstance(error, SourceGoneError)
        return True

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest version of a subject, with a new request each time. Raises as `RegistryClient.get`."""
        what = f"subject {subject}"

        def ask() -> RegisteredSchema:
            response = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest", what)
            schema_id = response.get("id")
            if type(schema_id) is not int or not 0 <= schema_id <= _LARGEST_ID:
                raise schema_unusable(what, "the response holds no id")
            return self._schema(response, what, schema_id)

        return retry(ask, self._policy)

    def _schema(self, response: Mapping[str, Any], what: str, schema_id: int) -> RegisteredSchema:
        """Return a schema with its references, under the names by which they are imported."""
        files: dict[str, FileDescriptorProto] = {}
        texts: dict[str, str] = {}
        total = 0

        def gather(name: str, response: Mapping[str, Any], what: str, level: int) -> None:
            kind = _text(response, "schemaType", what, "AVRO")
            if kind != "PROTOBUF":
                raise schema_unusable(what, f"it is a schema of the type {kind!r}")
            if level > _MOST_LEVELS or len(files) + len(texts) >= _MOST_FILES:
                raise schema_unusable(what, "its references go round in a circle, or are too many")
            schema = _text(response, "schema", what)
            nonlocal total
            total += len(schema)
            if total > _MOST_BYTES:
                raise schema_unusable(what, _TOO_LARGE)
            try:
                files[name] = FileDescriptorProto.FromString(base64.b64decode(schema, validate=True))
                files[name].name = name
            except (binascii.Error, ValueError, DecodeError):
                texts[name] = schema
            for imported, path in _references(response, what):
                if imported not in files and imported not in texts:
                    inner = f"{what}, reference {imported!r}"
                    gather(imported, self._ask(path, inner), inner, level + 1)

        gather(_OWN, response, what, 0)
        main = _name_own(_text(response, "subject", what, what), files, texts)
        if texts:
            return RegisteredSchema(schema_id, _compile_texts(main, texts, files, what), main)
        _check_imports(files, what)
        missing = add_built_in(files)
        if missing:
            raise ConnectorError(
                "SCHEMA_IMPORT_MISSING",
                f"The {what} imports {missing!r}, which is neither a reference of it nor built in",
                "schemaRegistry",
                "Register that file, and the schema once more with a reference to it.",
            )
        return RegisteredSchema(schema_id, serialized(files), main)

    def _ask(self, path: str, what: str) -> dict[str, Any]:
        response: dict[str, Any] = self._get(path, what)
        _text(response, "schema", what)
        return response

    def _get(self, path: str, what: str) -> Any:
        """Ask for a schema as a descriptor; for its text where the registry fails at that and gives text (Karapace)."""
        if self._gives_text_only:
            return self._client.get(path, what)
        try:
            return self._client.get(f"{path}?format=serialized", what)
        except ConnectorError as error:
            if "HTTP 5" not in error.what or time.monotonic() < self._next_text:
                raise
            self._next_text = time.monotonic() + _TEXT_SECONDS  # most often a registry that fails is down
            try:
                text = self._client.get(path, what)
            except ConnectorError:
                raise error from None
            try:
                return self._client.get(f"{path}?format=serialized", what)  # it may serve again only since then
            except ConnectorError:
                self._gives_text_only = True
                return text


def _name_own(subject: str, files: dict[str, FileDescriptorProto], texts: dict[str, str]) -> str:
    """Name a schema's own file after its subject, but not as one of its imports; return the name."""
    main = subject.replace(" ", "-") + ".proto"
    while main in files or main in texts:
        main = f"_{main}"
    if _OWN in texts:
        texts[main] = texts.pop(_OWN)
    else:
        files[main] = files.pop(_OWN)
        files[main].name = main
    return main


def _check_imports(files: Mapping[str, FileDescriptorProto], what: str) -> None:
    """Refuse a name that is not UTF-8: it is bytes here."""
    if not all(isinstance(imported, str) for file in files.values() for imported in file.dependency):
        raise schema_unusable(what, "it imports a name that is not UTF-8")


def _references(response: Mapping[str, Any], what: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each reference, and the path of its schema."""
    references = response.get("references") or ()
    if not isinstance(references, list | tuple):
        raise schema_unusable(what, "its references are no list")
    for reference in references:
        imported, subject = (_text(reference, key, what) for key in ("name", "subject"))
        if type(reference.get("version")) is not int:
            raise schema_unusable(what, f"its reference {imported!r} has no version")
        yield imported, f"/subjects/{quote(subject, safe='')}/versions/{reference['version']}"


def _text(response: object, key: str, what: str, default: str | None = None) -> str:
    value = response.get(key) if isinstance(response, dict) else None
    value = default if value is None else value
    if not isinstance(value, str) or _SURROGATE.search(value):
        raise schema_unusable(what, f"the response holds no {key}; is this the address of a schema registry?")
    return value


def _compile_texts(main: str, texts: Mapping[str, str], files: Mapping[str, FileDescriptorProto], what: str) -> bytes:
    """Return the descriptor set of texts, compiled by another process: a text can overflow the stack of protoc."""
    if not_installed(["grpc_tools"]):
        raise ConnectorError(
            "PACKAGES_MISSING",
            f"The registry gives the {what} as text only, and grpcio-tools, which compiles it, is not installed",
            "schemaRegistry",
            install_advice("protos"),
        )
    with TemporaryDirectory() as folder, TemporaryDirectory() as output:
        root = Path(folder).resolve()
        for name, text in texts.items():
            path = root / name
            try:
                path.resolve().relative_to(root)  # ValueError for a path outside
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            except (OSError, ValueError):
                why = f"it has or imports {name!r:.100}, which is no name of a file"
                raise schema_unusable(what, why) from None
        target, known = Path(output) / "set.desc", Path(output) / "known.desc"
        others = [
            file for file in FileDescriptorSet.FromString(built_in_set()).file if file.name not in {*files, *texts}
        ]
        known.write_bytes(FileDescriptorSet(file=[*files.values(), *others]).SerializeToString())
        command = [f"-I{root}", f"--descriptor_set_in={known}", "--include_imports"]
        # By a path where it has one: protoc takes a name that begins with - or @ as something else.
        own = str(root / main) if main in texts else main
        if own.startswith(("-", "@")):
            raise schema_unusable(what, f"its subject {main!r:.100} gives no name of a file")
        command += [f"--descriptor_set_out={target}", own]
        accepted, printed = run_protoc(command, FOREIGN_LIMITS, _MOST_COMPILE_SECONDS)
        if not accepted:
            place, why, _ = place_of(printed.replace(f"{root}/", ""))
            why = f"{place}: {why}" if place else why
            raise schema_unusable(what, f"protoc does not accept its text: {why[:_MOST_SHOWN].rstrip('.')}")
        if target.stat().st_size > _MOST_BYTES:
            raise schema_unusable(what, _TOO_LARGE)
        return target.read_bytes()
