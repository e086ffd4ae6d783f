"""A proxy of a Kafka broker that counts the requests it passes on, by their kind; a process of its own.

Its first line of output is its address. Each line of input is a command, one JSON object: ``{"do": "lead", "to":
"HOST:PORT"}`` says where the broker is, ``{"do": "counts"}`` asks how many requests of each kind there were; the answer
is one line of JSON. A request begins with its length (4 bytes) and its API key (2 bytes):
https://kafka.apache.org/protocol.html
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

_NAMES = {0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 18: "ApiVersions", 60: "DescribeCluster"}
_NAMES |= {75: "DescribeTopicPartitions"}
_CHUNK = 1 << 16


class Proxy:
    """The proxy."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._target = ("", 0)

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what a line of input says."""
        if command["do"] == "lead":
            host, _, port = command["to"].partition(":")
            self._target = (host, int(port))
        return dict(self.counts)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client."""
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        await asyncio.gather(
            _pass(self._requests(reader), upstream_writer),
            _pass(_chunks(upstream_reader), writer),
            return_exceptions=True,
        )

    async def _requests(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(6)
                key = int.from_bytes(head[4:], "big")
                self.counts[_NAMES.get(key, f"API {key}")] += 1
                yield head + await reader.readexactly(int.from_bytes(head[:4], "big") - 2)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while chunk := await reader.read(_CHUNK):
        yield chunk


async def _pass(chunks: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    try:
        async for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


def _answer(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Serve until the input ends."""
    proxy = Proxy()
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    _answer({"address": f"127.0.0.1:{server.sockets[0].getsockname()[1]}"})
    while line := await asyncio.to_thread(sys.stdin.readline):
        _answer(proxy.command(json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main())
