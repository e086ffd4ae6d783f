"""Schemas of a batch of messages: asked for one by one, with one patience for all of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar
from uuid import UUID

from connectors.core.errors import ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.core.processes.pool import Cache
from connectors.core.retry import OutageRule, wait_out

_OF_ONE_SCHEMA: Final = {"SCHEMA_NOT_FOUND", "SCHEMA_RULE_UNSUPPORTED", "SCHEMA_UNUSABLE"}

_MOST_SCHEMAS: Final = 256  # schemas that a client retains, each with all that it imports

S = TypeVar("S")


class SchemaSource(Protocol[S]):
    """A client of a registry; safe to use from several threads."""

    def by_ids(
        self, ids: Iterable[int | str], most_failures: int, patience: float | None = None
    ) -> dict[int | str, S | ConnectorError]:
        """Return several schemas, and for each that cannot be had the reason; see `BatchedRequests.by_ids`."""
        ...

    def latest(self, subject: str, *, writing: bool = False) -> S:
        """Return the latest version of a subject, with a new request each time; to read by it, or to write by it.

        Raises:
            ConnectorError: the registry does not answer, refuses access, or has no such subject; or
                SCHEMA_RULE_UNSUPPORTED, where reading or writing needs a rule of the schema.
        """
        ...

    def id_of(self, subject: str, text: str, schema_type: str, *, register: bool = False) -> int | str:
        """Return the id of a schema of a subject; asked for once in a process, since it never changes.

        Args:
            subject: the subject.
            text: the schema.
            schema_type: such as AVRO.
            register: whether to add the schema to the subject where it is not in it.

        Raises:
            ConnectorError: as `latest` to write by it; SCHEMA_NOT_FOUND where the subject has no such schema,
                SCHEMA_REFUSED where the registry does not take it.
        """
        ...

    def guid(self, schema_id: int | str) -> bytes:
        """Return the GUID of a schema; SCHEMA_UNUSABLE where the registry has none."""
        ...


def schema_unusable(what: str, why: str, action: str = "") -> ConnectorError:
    """Return the error for a schema, or a response of a registry, that makes no sense."""
    return ConnectorError("SCHEMA_UNUSABLE", f"The {what} cannot be used: {why}", "schemaRegistry", action)


def _is_unavailable(result: object) -> bool:
    return isinstance(result, ServiceUnavailableError)


class BatchedRequests(Generic[S]):
    """Asks a registry for the schemas of a batch, and retains them: none changes under its id.

    Args:
        by_id: makes one request; raises a `ConnectorError`.
        probe: asks for the schema of an id, without making anything of it.
        unassigned: an id that no registry gives out.
        retry_seconds: how long a registry that does not answer is asked again.
        request_seconds: how long one request may take.
    """

    def __init__(
        self,
        by_id: Callable[[int | str], S],
        probe: Callable[[int | str], object],
        unassigned: int | str,
        retry_seconds: float,
        request_seconds: float,
    ) -> None:
        self._fetch, self._probe, self._last_served = by_id, probe, unassigned
        self._retry_seconds, self._request_seconds = retry_seconds, request_seconds
        self._schemas = Cache(_MOST_SCHEMAS)

    def _by_id(self, schema: int | str) -> S:
        key = str(UUID(schema)) if isinstance(schema, str) else schema
        fetched: S = self._schemas.get(key, lambda: self._fetch(key))
        self._last_served = key
        return fetched

    def _serves(self) -> bool:
        """Return whether the registry answers for schemas: the last one that it gave, or one that nobody has."""
        try:
            self._probe(self._last_served)
        except ConnectorError as error:
            return isinstance(error, SourceGoneError)
        return True

    def by_ids(
        self, ids: Iterable[int | str], most_failures: int, patience: float | None = None
    ) -> dict[int | str, S | ConnectorError]:
        """Return several schemas, and for each that cannot be had the reason.

        While the registry answers for others, one that it cannot give is no reason to stop: any bytes can look like an
        id, and some registries answer 5xx for ids that they cannot have given.

        Args:
            ids: ids, and GUIDs of 32 hexadecimal digits, in the order in which to ask for them.
            most_failures: how many may fail before no further one is asked for.
            patience: how many seconds to retry while the registry does not answer; None for `retry.timeout`.
        """
        results: dict[int | str, S | ConnectorError | None] = dict.fromkeys(ids)
        rule = OutageRule(self._retry_seconds if patience is None else patience)
        end = time.monotonic() + self._retry_seconds + self._request_seconds

        def ask() -> None:
            self._ask_once(results, most_failures, end)

        with contextlib.suppress(ServiceUnavailableError):  # it stands in the results
            wait_out(ask, rule)
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

    def _ask_once(self, results: dict[int | str, S | ConnectorError | None], most_failures: int, end: float) -> None:
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
