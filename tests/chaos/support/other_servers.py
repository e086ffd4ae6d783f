"""Servers that we did not write, for fault runs: why one cannot be had here, its version, and where it listens."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from connectors.testing.process import ServerProcess
from tests.servers.kinesis_local import KinesisLocal, find_kinesis_local
from tests.servers.object_stores.moto import MotoServer
from tests.servers.pstest import PsTest, find_pstest
from tests.servers.pubsub_emulator import Emulator, find_emulator
from tests.support.clients import pubsub_go_version


@dataclass(frozen=True)
class OtherServer:
    """A server that we did not write.

    Attributes:
        name: in the names of trials and their parts.
        start: starts it as a process.
        missing: says why it cannot be had here, empty if it can; it may install or build it.
        version: of one that can be had.
    """

    name: str
    start: Callable[[], ServerProcess]
    missing: Callable[[], str]
    version: Callable[[], str]


class OtherServers:
    """Those of a run, each started when it is first needed.

    Args:
        stack: ends them.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._endpoints: dict[OtherServer, str] = {}

    def endpoint(self, server: OtherServer) -> str:
        """Where it listens."""
        if server not in self._endpoints:
            self._endpoints[server] = self._stack.enter_context(server.start()).endpoint
        return self._endpoints[server]


def _kinesis_local_version() -> str:
    package = find_kinesis_local().modules / "kinesis-local" / "package.json"
    return str(json.loads(package.read_text())["version"])


KINESIS_LOCAL = OtherServer("kinesis_local", KinesisLocal, lambda: find_kinesis_local().reason, _kinesis_local_version)
MOTO = OtherServer("moto", MotoServer, MotoServer.unavailable, lambda: MotoServer.version)
EMULATOR = OtherServer("emulator", Emulator, lambda: find_emulator().reason, lambda: find_emulator().version)
PSTEST = OtherServer("pstest", PsTest, lambda: find_pstest().reason, pubsub_go_version)
