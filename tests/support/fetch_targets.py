"""Targets without a service, for the tests of the process that fetchers run in.

`NumberTarget` receives the numbers 0, 1, 2, ... as messages, a few in each delivery, and writes what becomes of them to
a log: one line for each delivery, block that may be acked, and token that is given back.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from connectors.core.errors import ConnectorError, SourceGoneError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.fetching.contract import Block, FetchContext, FetchTarget, Intake, TargetStatus
from connectors.spool.fetching.messages import malformed

if TYPE_CHECKING:
    from connectors.pubsub.source.acks import Received


@dataclass(frozen=True)
class Delivery:
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Token:
    numbers: tuple[int, ...]


def read_log(path: Path) -> list[dict[str, Any]]:
    """The whole lines; the last one may be half written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def numbers_of(log: list[dict[str, Any]], kind: str) -> list[int]:
    return [number for line in log if line["kind"] == kind for number in line["numbers"]]


FAILPOINTS = (
    "fetch.before_folder",
    "fetch.after_folder",
    "fetch.before_decode",
    "segment.before_append",
    "fetch.before_publish",
    "store.before_sync",
    "store.before_link",
    "store.before_folder_sync",
    "store.after_publish",
    "fetch.after_publish_before_ack",
    "fetch.after_ack",
    "fetch.before_nack",
    "fetch.after_nack",
)
"""Every failpoint that a fetcher passes, those of the store and the segment among them."""

PATIENT = {f"__main__.{name}": 60.0 for name in ("_PUBLISH_LIMIT", "_CLOSE_LIMIT", "_HARD_LIMIT")}
"""Limits with which a fetcher that has to stand still for seconds publishes at its end all the same."""


def set_limits(limits: Mapping[str, float]) -> None:
    """Set limits of the process that a target is loaded in, by their full names, for tests that are not about them."""
    for name, seconds in limits.items():
        module, _, attribute = name.rpartition(".")
        assert hasattr(sys.modules[module], attribute), name
        setattr(sys.modules[module], attribute, seconds)


def limited_pubsub(settings: Mapping[str, Any], context: FetchContext) -> FetchTarget[Received, Received]:
    """The target of Pub/Sub in a process with the limits that the settings have beside its own."""
    from connectors.pubsub.source.fetcher import PubSubFetch  # noqa: PLC0415 - a second that the other targets need not wait

    set_limits(settings["limits"])
    return PubSubFetch({name: value for name, value in settings.items() if name != "limits"}, context)


class NumberTarget(FetchTarget[Delivery, Token]):
    """A target that counts.

    Settings: log (path), total, rows (a delivery), bytes (a row), gap (seconds between deliveries), first_alone
    (nothing more is received until the first block was acked), report (a text that goes to the source process as if it
    were a report), limits (see `set_limits`).
    """

    def __init__(self, settings: Mapping[str, Any], context: FetchContext) -> None:
        set_limits(settings.get("limits", {}))
        self._settings = settings
        self._acked = threading.Event()
        self._context = context
        self._log = os.open(settings["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._pending = list(range(settings["total"]))[::-1]
        self._decoded: set[Delivery] = set()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        context.orders.listen(self._take_order)
        if settings.get("fail") == "start":
            raise ImportError("a library is missing")

    def _take_order(self, name: str, order: Any) -> None:
        if name == "refused":
            raise malformed("its target does not know this order")
        self._context.note([name, order])

    def start(self, intake: Intake[Delivery, Token]) -> None:
        self._write("start", ())
        self._stopped.clear()
        self._thread = threading.Thread(target=self._receive, args=(intake,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._write("stop", ())

    def decode(self, deliveries: Sequence[Delivery]) -> Block[Token]:
        if self._settings.get("fail") == "decode":
            raise ValueError("not to be decoded")
        numbers = tuple(number for each in deliveries for number in each.numbers)
        self._decoded.update(deliveries)
        ids = pa.array([str(number) for number in numbers], pa.string())
        payloads = pa.array([b"x" * self._settings["bytes"]] * len(numbers), pa.binary())
        rows = pa.record_batch({"messageId": ids, "payload": payloads})
        sizes = np.full(len(numbers), self._settings["bytes"], np.int64)
        published = (min(numbers), max(numbers)) if numbers else None
        notes = [list(numbers)] if self._settings.get("notes") else []
        return Block(rows, None if notes else ids, sizes, published, Token(numbers), notes=notes)

    def on_durable(self, token: Token) -> None:
        self._write("ack", token.numbers)
        self._acked.set()
        failpoint("fetch.after_ack")

    def on_given_up(self, held: Sequence[Delivery | Token]) -> None:
        numbers = [number for one in held for number in one.numbers]
        if not self._decoded.isdisjoint(held):
            raise AssertionError("a delivery is given up whose lease belongs to a block")
        self._decoded.clear()
        self._write("nack", numbers)
        self._pending += numbers[::-1]
        failpoint("fetch.after_nack")

    def status(self) -> TargetStatus:
        receiving = self._thread is not None and not self._stopped.is_set()
        return TargetStatus(1, int(receiving), None, {"left": 0})

    def close(self, deadline: float) -> None:
        if self._settings.get("hang_at_close"):
            time.sleep(60)
        self._write("close", ())
        assert deadline > time.monotonic()

    def _receive(self, intake: Intake[Delivery, Token]) -> None:
        if self._settings.get("fail") == "gone":
            self._context.fail(_gone())
        if self._settings.get("report"):
            _report(self._settings["report"])
        if self._settings.get("fail") == "thread":
            self._context.fail(KeyError("a thread of the target"))
        while self._pending and not self._stopped.is_set():
            if intake.wait(0.05, self._stopped.is_set):
                count = min(self._settings["rows"], len(self._pending))
                delivery = Delivery(tuple(self._pending.pop() for _ in range(count)))
                self._write("receive", delivery.numbers)
                intake.put(delivery, count * self._settings["bytes"], count)
                self._stopped.wait(self._settings.get("gap", 0))
                if self._settings.get("first_alone"):
                    self._acked.wait()

    def _write(self, kind: str, numbers: Sequence[int]) -> None:
        line = {"kind": kind, "pid": os.getpid(), "time": time.monotonic(), "numbers": list(numbers)}
        os.write(self._log, json.dumps(line).encode() + b"\n")


def _report(text: str) -> None:
    """Write to the pipe of the reports, which is the only one beyond the standard streams that is open for writing."""
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):
            if descriptor > 2 and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, text.encode())


def _gone() -> ConnectorError:
    return SourceGoneError("NUMBERS_GONE", "There are no numbers any more", "numbers", "Count by hand.")
