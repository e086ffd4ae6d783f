"""Which client of HTTP/2 carries SubscribeToShard best: h2 on asyncio, as the fetchers use it, httpx, or awscrt.

One subscription reads a shard of our own server from its first record, over TLS, as on AWS. The frames are parsed by
the same code on each side, so the sides differ in the transport alone. CPU seconds are those of this process with all
its threads. The server is one process of Python: where it is the limit, records a second say little.

httpx and awscrt are not installed with this package: pip install "httpx[http2]" awscrt. A side that is absent is left
out.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import queue
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

from _common import Benchmark, Side, interleaved, parser, version

from connectors.kinesis.client.client import KinesisClient, MessageBuffer, SignedRequest, parse_event
from connectors.kinesis.client.http2 import Http2Client
from connectors.kinesis.offsets import TRIM
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import parse_read_options
from tests.servers.certificates import make_certificates

SIZES = ("100", "1024")
SHARD = "shardId-000000000000"
WINDOW = 4 << 20
_cpu: dict[str, list[float]] = {}


class Counter:
    """Counts the records in the pieces of an answer."""

    def __init__(self, wanted: int) -> None:
        self._buffer = MessageBuffer()
        self._left = wanted

    def feed(self, data: bytes) -> bool:
        """Whether all have come."""
        for message in self._buffer.feed(data):
            if message.headers.get(":event-type") == "SubscribeToShardEvent":
                self._left -= len(parse_event(message.payload).records)
        return self._left <= 0


def by_h2(request: SignedRequest, wanted: int) -> None:
    """Our own client."""

    async def read() -> None:
        client = Http2Client()
        counter = Counter(wanted)
        made = await client.post(request.url, request.headers, request.body, request.certificates)
        async with made as answer:
            await answer.begin()
            while not counter.feed(await answer.read()):
                pass
        await client.close()

    asyncio.run(read())


def by_httpx(request: SignedRequest, wanted: int) -> None:
    """Httpx with h2."""
    import httpx  # noqa: PLC0415 - may be absent

    counter = Counter(wanted)
    trusted = ssl.create_default_context(cafile=request.certificates)
    with (
        httpx.Client(http2=True, verify=trusted, timeout=30) as client,
        client.stream("POST", request.url, headers=dict(request.headers), content=request.body) as answer,
    ):
        any(counter.feed(piece) for piece in answer.iter_raw())


def by_awscrt(request: SignedRequest, wanted: int) -> None:
    """Awscrt, whose threads put pieces into a queue, and whose window opens as they are taken."""
    from awscrt import http, io  # noqa: PLC0415 - may be absent

    tls = io.TlsContextOptions()
    tls.alpn_list = ["h2"]
    tls.override_default_trust_store_from_path(None, request.certificates)
    parts = urlsplit(request.url)
    options = io.ClientTlsContext(tls).new_connection_options()
    options.set_server_name(parts.hostname or "")
    bootstrap = io.ClientBootstrap.get_or_create_static_default()
    settings = [http.Http2Setting(http.Http2SettingID.INITIAL_WINDOW_SIZE, WINDOW)]
    connection = http.Http2ClientConnection.new(
        parts.hostname or "",
        parts.port or 443,
        bootstrap,
        tls_connection_options=options,
        initial_settings=settings,
    ).result(30)
    pieces: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    headers = http.HttpHeaders(
        [("host", parts.netloc), *((name.lower(), each) for name, each in request.headers.items())]
    )
    asked = http.HttpRequest("POST", parts.path or "/", headers, BytesIO(request.body))
    stream = connection.request(asked, on_body=lambda chunk, **_more: pieces.put(bytes(chunk)))
    stream.activate()
    counter = Counter(wanted)
    while not counter.feed(pieces.get(timeout=30)):
        pass
    connection.close().result(30)


TRANSPORTS: dict[str, tuple[str, Callable[[SignedRequest, int], None]]] = {
    "h2 on asyncio": ("h2", by_h2),
    "httpx": ("httpx", by_httpx),
    "awscrt": ("awscrt", by_awscrt),
}


def timed(name: str, count: int, read: Callable[[], None]) -> Callable[[], float]:
    """Reads once: records a second; notes CPU seconds for a million records."""

    def run() -> float:
        begin, spent = time.perf_counter(), time.process_time()
        read()
        seconds = time.perf_counter() - begin
        _cpu.setdefault(name, []).append((time.process_time() - spent) / count * 1e6)
        return count / seconds

    return run


def sides(signed: Callable[[], SignedRequest], count: int) -> Iterable[tuple[str, Callable[[], float]]]:
    """The transports that are installed."""
    for name, (package, read) in TRANSPORTS.items():
        if importlib.util.find_spec(package) is not None:
            yield name, timed(name, count, lambda read=read: read(signed(), count))  # type: ignore[misc]


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--records", type=int, default=100_000, help="how many are read")
    command_line = arguments.parse_args()
    count: int = command_line.records
    benchmark = Benchmark("kinesis_transport")
    benchmark.settings(
        transports=", ".join(f"{name} {version(package)}" for name, (package, _) in TRANSPORTS.items()), records=count
    )
    with tempfile.TemporaryDirectory() as folder:
        certificates = make_certificates(Path(folder) / "tls")
        command = [
            sys.executable,
            str(Path(__file__).with_name("_kinesis_tls_server.py")),
            str(certificates),
            str(count),
        ]
        with subprocess.Popen([*command, *SIZES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            found = json.loads(server.stdout.readline())
            raw = {"streamName": "bench", "endpointUrl": found["url"]}
            keys = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
            options = parse_read_options(raw | keys, {}, streaming=False)
            client = KinesisClient(client_options(options))
            for size in SIZES:
                if command_line.cases and size not in command_line.cases:
                    continue
                consumer = found["consumers"][size]

                def signed(consumer: str = consumer) -> SignedRequest:
                    made = client.subscription(consumer, SHARD, TRIM)
                    return SignedRequest(made.url, made.headers, made.body, str(certificates / "ca.pem"))

                runs = dict(sides(signed, count))
                for warm in runs.values():
                    warm()
                _cpu.clear()
                ours, *others = interleaved(runs, command_line.rounds)
                for other in others:
                    benchmark.compare(f"wall-{size}-{other.name}", ours, other, "records/s")
                    spent = [Side(each.name, _cpu[each.name]) for each in (ours, other)]
                    benchmark.compare(f"cpu-{size}-{other.name}", *spent, "CPU s/M records", less_is_better=True)
            server.stdin.close()  # type: ignore[union-attr]
    benchmark.finish()


if __name__ == "__main__":
    main()
