"""OpenLineage events: which topics, streams, subscriptions and folders each query reads and writes.

To a Spark listener of the JVM, such as OpenLineage's own, all sources in Python are of one class without a name. The
events are JSON of a published schema, so they are written here: the package openlineage-python would bring 17 more.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from connectors import __version__
from connectors.core.errors import ConnectorError, OptionError
from connectors.core.formats import connector_of
from connectors.core.options.transport import refuse_plaintext
from connectors.core.processes.spark import StreamPlan
from connectors.observe.jsonl import LineFile

_log = logging.getLogger(__name__)

_PRODUCER: Final = f"pkg:pypi/pyspark-stream-connectors@{__version__}"
_SCHEMA: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_JOB_TYPE: Final = {
    "_producer": _PRODUCER,
    "_schemaURL": "https://openlineage.io/spec/facets/2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet",
    "processingType": "STREAMING",
    "integration": "SPARK",
    "jobType": "QUERY",
}
_PATH: Final = "/api/v1/lineage"
# How Spark and Delta describe their sources and sinks of files.
_FOLDER: Final = re.compile(r"(?:File|FileStream|Delta)(?:Source|Sink)\[([a-z][a-z0-9+.-]*:/.*)\]", re.DOTALL)
_KEY_LIKE: Final = ("s3", "gs", "abfs", "wasb")  # stores whose names begin without a slash, as OpenLineage has them
_CANONICAL: Final = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
_ANSWER_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 30.0
_MOST_UNSENT: Final = 1000
_AGAIN: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}

Dataset = tuple[str, str]  # a namespace and a name in it


def folder_of(description: str) -> list[Dataset]:
    """Return the folder in a description of a source or sink of files, as OpenLineage names it; none in any other."""
    match = _FOLDER.fullmatch(description)
    if match is None:
        return []
    uri = urlsplit(match[1])
    scheme = _CANONICAL.get(uri.scheme, uri.scheme)
    user, _, host = uri.netloc.rpartition("@")
    # A container of Azure stands there, and, in URLs of old, keys of S3.
    authority = host if ":" in user or not user else uri.netloc
    path = uri.path.rstrip("/") or "/"
    name = path.lstrip("/") or "/" if scheme.startswith(_KEY_LIKE) else path
    return [(f"{scheme}://{authority}" if authority else scheme, name)]


@dataclass
class _Run:
    job: str
    readers: list[Any] = field(default_factory=list)
    """The options of each source; None for a source of another format."""
    inputs: set[Dataset] = field(default_factory=set)
    outputs: set[Dataset] = field(default_factory=set)


class Lineage:
    """Writes the events of all runs of a session's queries to a file or, over HTTP, to a service.

    ``environ`` has ``OPENLINEAGE_NAMESPACE`` and ``OPENLINEAGE_API_KEY``, as for OpenLineage's own clients.

    Raises:
        OptionError: the URL is not valid, or the key would go over plain http to another machine.
        ConnectorError: the file cannot be opened.
    """

    def __init__(self, to: str | Path, environ: Mapping[str, str]) -> None:
        self._namespace = environ.get("OPENLINEAGE_NAMESPACE") or "default"
        is_url = isinstance(to, str) and re.match(r"https?:", to, re.IGNORECASE)
        key = environ.get("OPENLINEAGE_API_KEY") or ""
        self._target: Endpoint | LineFile = Endpoint(str(to), key) if is_url else LineFile(Path(to))
        self._runs: dict[str, _Run] = {}

    def start(self, time_ms: int, query: Mapping[str, Any], plan: StreamPlan | None) -> None:
        """Write that a query has started, once a run; without a plan, inputs and outputs come with its first batch."""
        if (key := query["run"]) in self._runs:
            return
        run = self._runs[key] = _Run(query["name"] or query["query"])
        if plan is None:
            _log.warning("[OBSERVE_LINEAGE] Spark does not show the sources and the sink of the query %s", run.job)
        else:
            run.readers = [_options(name, options, sink=False) for name, options in plan.sources]
            run.inputs.update(*(_datasets(options) for options in run.readers))
            name, options = plan.sink
            run.outputs.update(_datasets(_options(name, options, sink=True)), folder_of(name))
        self._write("START", time_ms, key)

    def progress(self, time_ms: int, progress: Mapping[str, Any]) -> None:
        """Write what a batch adds to the inputs and outputs: topics of a pattern, and folders."""
        if (run := self._runs.get(key := str(progress["runId"]))) is None:
            return
        sources = progress["sources"]
        before = len(run.inputs) + len(run.outputs)
        if len(sources) == len(run.readers):
            pairs = zip(run.readers, sources, strict=True)
            run.inputs.update(*(_datasets(options, source.get("endOffset")) for options, source in pairs))
        run.inputs.update(*(folder_of(source.get("description") or "") for source in sources))
        run.outputs.update(folder_of((progress.get("sink") or {}).get("description") or ""))
        if len(run.inputs) + len(run.outputs) > before:
            self._write("RUNNING", time_ms, key)

    def end(self, time_ms: int, key: str, *, failed: bool) -> None:
        """Write that a run has ended."""
        if key in self._runs:
            self._write("FAIL" if failed else "COMPLETE", time_ms, key)
            del self._runs[key]

    def close(self) -> None:
        """Try a last time what a service has not taken, and close the file."""
        self._target.close()

    def _write(self, kind: str, time_ms: int, key: str) -> None:
        run = self._runs[key]
        self._target.write(
            {
                "eventType": kind,
                "eventTime": datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds"),
                "run": {"runId": key},
                "job": {"namespace": self._namespace, "name": run.job, "facets": {"jobType": _JOB_TYPE}},
                "inputs": _as_json(run.inputs),
                "outputs": _as_json(run.outputs),
                "producer": _PRODUCER,
                "schemaURL": _SCHEMA,
            }
        )


def _as_json(datasets: Iterable[Dataset]) -> list[dict[str, str]]:
    return [{"namespace": namespace, "name": name} for namespace, name in sorted(datasets)]


def _options(name: str, raw: Mapping[str, str], *, sink: bool) -> Any:
    """Return the options of a source or sink of this pack; None of any other, and where the query fails on them."""
    with suppress(ConnectorError, ImportError):
        if (connector := connector_of(name)) is not None:
            return connector.write_options(raw) if sink else connector.read_options(raw, streaming=None)
    return None


def _datasets(options: Any, *offset: Any) -> list[Dataset]:
    with suppress(ConnectorError):  # an offset of another source
        return [] if options is None else list(options.datasets(*offset))
    return []


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none: the key would go along."""


class Endpoint:
    """Posts events to a service, such as Marquez or DataHub, in their order.

    What it does not take now is tried again with later events; after a failure not for half a minute.
    """

    def __init__(self, url: str, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            parts = urlsplit(url)
            is_valid = parts.hostname and "@" not in parts.netloc and not parts.fragment and parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:  # and is not repeated: it may hold a secret
            what = "The URL for lineage is not valid"
            action = "Give http:// or https://, a host, and a port and a path if needed."
            raise OptionError("OBSERVE_LINEAGE", what, "watch", f"{action} A key is read from OPENLINEAGE_API_KEY.")
        if key:
            refuse_plaintext(url, "lineage, with OPENLINEAGE_API_KEY,", "watch", "Give an https:// URL.")
        self._host = parts.netloc
        self._url = url if parts.path.strip("/") else parts._replace(path=_PATH).geturl()
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._opener = build_opener(_NoRedirect)
        self._clock = clock
        self._unsent: deque[Mapping[str, Any]] = deque(maxlen=_MOST_UNSENT)
        self._next_try = 0.0

    def write(self, value: Mapping[str, Any]) -> None:
        """Send an event, or leave it for later."""
        self._unsent.append(value)
        if self._clock() >= self._next_try:
            self._send()

    def close(self) -> None:
        """Try a last time."""
        self._send()
        if self._unsent:
            _log.warning("[OBSERVE_LINEAGE] %s: %d events are lost", self._host, len(self._unsent))

    def _send(self) -> None:
        while self._unsent:
            if why := self._post(self._unsent[0]):
                self._next_try = self._clock() + _PAUSE_SECONDS
                text = "[OBSERVE_LINEAGE] %s takes no events: %s; the next try is in %d s"
                _log.warning(text, self._host, why, _PAUSE_SECONDS)
                return
            self._unsent.popleft()

    def _post(self, event: Mapping[str, Any]) -> str:
        """Return why an event is to be sent again; empty if the service took or refused it."""
        request = Request(self._url, json.dumps(event).encode(), self._headers)  # noqa: S310 - http and https alone come here
        try:
            self._opener.open(request, timeout=_ANSWER_SECONDS).close()
        except HTTPError as error:
            error.close()
            if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code in _AGAIN:
                return f"HTTP status {error.code}"
            _log.warning("[OBSERVE_LINEAGE] %s refuses an event: HTTP status %d", self._host, error.code)
        except (OSError, HTTPException) as error:
            return str(getattr(error, "reason", "") or error) or type(error).__name__
        return ""
