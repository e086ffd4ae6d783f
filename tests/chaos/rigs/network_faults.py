"""What is made wrong between a query and a service: the network through toxiproxy, or a process that is paused."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.toxiproxy import Proxy, Toxic

_RESET_EVERY = 0.25
_RESET = Toxic("reset_peer", toxicity=0.05)
_SILENT = Toxic("timeout", {"timeout": 0})
"""What the service sends is dropped, what the query sends arrives."""
_TEN_MINUTES = 600.0
_ESTABLISHED = "01"
"""In /proc/net/tcp, see proc(5)."""


@dataclass(frozen=True)
class Fault:
    """One fault of the network.

    Attributes:
        seconds: how long it lasts.
        apply: makes the network bad until the context ends.
        passes: whether records come through it: the query must go on before it is over.
        server_seconds: how far the server's clock jumps in it, of a server that has one.
        kills: kinds of processes, of which one of the query is killed in the middle of it.
    """

    seconds: float
    apply: Callable[[Proxy], Iterator[None]]
    passes: bool = False
    server_seconds: float = 0.0
    kills: tuple[str, ...] = ()


def _toxics(*toxics: Toxic) -> Callable[[Proxy], Iterator[None]]:
    def apply(proxy: Proxy) -> Iterator[None]:
        for toxic in toxics:
            proxy.add(toxic)
        yield

    return apply


def _resets(proxy: Proxy) -> Iterator[None]:
    """Four times a second each connection is reset with a chance of 5 %."""
    healed = threading.Event()

    def reset_some() -> None:
        while not healed.is_set():
            proxy.add(_RESET)
            healed.wait(_RESET_EVERY)
            proxy.remove(_RESET)

    thread = threading.Thread(target=reset_some, daemon=True)
    thread.start()
    try:
        yield
    finally:
        healed.set()
        thread.join()


def _outage(proxy: Proxy) -> Iterator[None]:
    proxy.disable()
    yield


FAULTS = {
    "latency": Fault(6.0, _toxics(Toxic("latency", {"latency": 500})), passes=True),
    "resets": Fault(8.0, _resets, passes=True),
    "bandwidth": Fault(
        6.0,
        _toxics(Toxic("bandwidth", {"rate": 50}), Toxic("bandwidth", {"rate": 50}, stream="upstream")),
        passes=True,
    ),
    "outage_5_s": Fault(5.0, _outage),
    "asymmetric_jvm_kill": Fault(6.0, _toxics(_SILENT), kills=("jvm",)),
    "asymmetric_kill": Fault(6.0, _toxics(_SILENT), kills=("source_runner", "worker", "fetcher")),
    "outage_10_min": Fault(8.0, _outage, server_seconds=_TEN_MINUTES),
    "half_open": Fault(40.0, _toxics(Toxic("timeout", {"timeout": 0}, toxicity=0.5))),
    "outage_60_s": Fault(60.0, _outage),
}
"""By name, in the order in which they are tried: 500 ms more for each answer; resets; 50 kB/s each way; outages;
answers that do not come while a process is killed; half of the connections half-open.
"""

PAUSE_SECONDS = 60.0


@contextmanager
def applied(fault: Fault, proxy: Proxy) -> Iterator[None]:
    """Make the network bad; it is healed when the context ends."""
    try:
        yield from fault.apply(proxy)
    finally:
        proxy.heal()


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """SIGSTOP a process; SIGCONT when the context ends."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def connections(proxy: Proxy) -> set[int]:
    """The connections to a proxy that are established, whatever process has them, by the ports of the clients."""
    fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = [[int(end.rpartition(":")[2], 16) for end in line[1:3]] for line in fields if line[3] == _ESTABLISHED]
    return {client for server, client in ends if server == proxy.port}
