"""The one thread that does all the work of a Kinesis server: a loop of asyncio with listeners and a timer."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from connectors.testing.clock import ServerClock
from connectors.testing.kinesis.exchange import Exchange, Handler, Request
from connectors.testing.kinesis.faults.calls import CallLog
from connectors.testing.kinesis.faults.plan import FaultPlan
from connectors.testing.kinesis.http import HttpConnection
from connectors.testing.kinesis.model.state import KinesisState
from connectors.testing.kinesis.service import KinesisService

__all__ = ["KinesisRuntime"]

_HOST = "127.0.0.1"
_BACKLOG = 4096

_T = TypeVar("_T")


class KinesisRuntime:
    """The state of a server and its thread.

    Args:
        clock: server time.
        region: stands in ARNs.
        call_limit: see `CallLog`.
    """

    def __init__(self, clock: ServerClock, region: str, call_limit: int) -> None:
        self.clock = clock
        self.faults = FaultPlan()
        self.calls = CallLog(call_limit)
        self.state = KinesisState(clock, region, self.faults)
        self.service = KinesisService(self.state, self.calls, self._later)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._servers: list[asyncio.Server] = []
        self._connections: set[HttpConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: int | None = None

    def start(self, ports: list[tuple[int, ssl.SSLContext | None]], handler: Handler) -> list[int]:
        """Listen on ports of 127.0.0.1, with TLS where there is a context; gives the ports; 0 asks for any.

        Raises:
            OSError: a port is taken.
        """
        loop = asyncio.new_event_loop()

        def handle(request: Request, exchange: Exchange) -> None:
            handler(request, exchange)
            self._arm()

        async def listen() -> list[int]:
            for port, context in ports:
                server = await loop.create_server(
                    lambda: HttpConnection(handle, self._connections), _HOST, port, ssl=context, backlog=_BACKLOG
                )
                self._servers.append(server)
            self._arm()
            return [int(server.sockets[0].getsockname()[1]) for server in self._servers]

        # In the server's thread: that of a notebook already runs an event loop.
        self._thread = threading.Thread(target=self._run, args=(loop,), name="kinesis-server", daemon=True)
        self._thread.start()
        self._loop = loop
        try:
            found = asyncio.run_coroutine_threadsafe(listen(), loop).result()
        except OSError:
            self.stop()
            raise
        return found

    def stop(self) -> None:
        """Cut all connections and end the thread; the streams stay."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        self._loop = self._thread = None

    def call(self, function: Callable[[], _T]) -> _T:
        """Run a function in the thread of the server, and give its result; here, while the server does not run."""
        if self._loop is None or threading.current_thread() is self._thread:
            self.state.schedule.run_due(self.clock.now())
            result = function()
            self.state.schedule.run_due(self.clock.now())
            self._arm()
            return result
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(self.call(function))
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.close()

    async def _close(self) -> None:
        # A server that is closed loses what it has accepted and not handed over: that takes two rounds of the loop.
        for listener in [each for server in self._servers for each in server.sockets]:
            asyncio.get_running_loop().remove_reader(listener)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        handshakes = asyncio.all_tasks() - {asyncio.current_task()}
        for task in handshakes:
            task.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in list(self._connections):
            connection.transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timer_due = None
        # Lost connections are told so in the next round of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            action()
            self._arm()

        asyncio.get_running_loop().call_later(seconds, act)

    def _arm(self) -> None:
        """Have the timer go off when the next thing of the schedule is due."""
        loop = self._loop
        due = self.state.schedule.next_due()
        if loop is None or due is None or (self._timer_due is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = loop.call_later(self.clock.real_seconds_until(due), self._do_what_is_due)

    def _do_what_is_due(self) -> None:
        self._timer = self._timer_due = None
        self.state.schedule.run_due(self.clock.now())
        self._arm()

    def clock_changed(self) -> None:
        """Set the timer again; to be called in the thread of the server."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_due = None
        self._arm()
