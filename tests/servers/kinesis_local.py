"""kinesis-local, which is kinesis-mock as an npm package, in a process of its own.

    found = find_kinesis_local()
    if found.reason:
        ...                                   # one sentence: why it cannot be had
    with KinesisLocal() as server:
        ...                                   # clients use server.url as endpoint, with any credentials

``python -m tests.servers kinesis-local --port N`` runs it as a program. The package comes through npm; the
server ends when its parent does, however that ends.

It is right about polling, resharding and the sink. It throttles and trims nothing, boto3 cannot read its
SubscribeToShard, and that never ends on a closed shard: for these, see `connectors.testing.kinesis.server`.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time

from connectors.testing.process import (
    ServerProcess,
    announce,
    aws_exports,
    server_parser,
    start_bound_process,
    stop_event,
)
from tests.servers.java import free_port, free_ports
from tests.servers.node_packages import NodePackages, node_packages

__all__ = ["KinesisLocal", "find_kinesis_local"]

_HOST = "127.0.0.1"
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_CALL_SECONDS = 1.0
_TRANSITION = "100ms"
_TRANSITIONS = (
    "CREATE_STREAM",
    "DELETE_STREAM",
    "REGISTER_STREAM_CONSUMER",
    "DEREGISTER_STREAM_CONSUMER",
    "MERGE_SHARDS",
    "SPLIT_SHARD",
    "UPDATE_SHARD_COUNT",
)
_SETTINGS = {
    **{f"{name}_DURATION": _TRANSITION for name in _TRANSITIONS},
    "SHARD_LIMIT": "10000",
    "LOG_LEVEL": "ERROR",
    "ROOT_LOG_LEVEL": "ERROR",
}


def find_kinesis_local() -> NodePackages:
    """Look for Node.js, and for the package through npm."""
    return node_packages("kinesis-local")


class KinesisLocal(ServerProcess):
    """kinesis-local as a child process; a context manager that ends it.

    Raises:
        ServiceUnavailableError: it cannot be had, or did not start; says why.
    """

    def __init__(self) -> None:
        super().__init__(__name__, ["--exit-with-parent"], start_timeout=_START_SECONDS + 30)

    @property
    def url(self) -> str:
        """What clients take as the URL of the endpoint."""
        return f"http://{self.endpoint}"


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(_HOST, port, timeout=_CALL_SECONDS)
    try:
        connection.request("GET", "/healthcheck")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _start(found: NodePackages, port: int) -> subprocess.Popen[bytes]:
    package = found.modules / "kinesis-local"
    # It looks for its certificate in the working directory, which is that of whoever started us.
    named = {"KINESIS_MOCK_CERT_PATH": str(package / "server.json")}
    other = next(each for each in free_ports(2) if each != port)
    named |= {"KINESIS_MOCK_PLAIN_PORT": str(port), "KINESIS_MOCK_TLS_PORT": str(other)}
    os.environ.update(_SETTINGS | named)
    return start_bound_process([found.node, str(package / "main.js")], stdout=sys.stderr.fileno())


def _run(process: subprocess.Popen[bytes], port: int, stopping: threading.Event) -> int:
    give_up_at = time.monotonic() + _START_SECONDS
    announced = False
    while process.poll() is None and not stopping.wait(_LOOK_SECONDS if not announced else _CALL_SECONDS / 5):
        if not announced and _answers(port):
            announce(
                f"{_HOST}:{port}",
                {"endpointUrl": f"http://{_HOST}:{port}"},
                aws_exports("AWS_ENDPOINT_URL_KINESIS", f"http://{_HOST}:{port}"),
            )
            announced = True
        if not announced and time.monotonic() > give_up_at:
            sys.stderr.write(f"kinesis-local did not listen within {_START_SECONDS} s\n")
            break
    if not stopping.is_set() and process.poll() is not None:
        sys.stderr.write(f"kinesis-local ended with status {process.returncode}\n")
    return 0 if stopping.is_set() else 1


def main(arguments: list[str] | None = None) -> int:
    """Run kinesis-local until SIGTERM or SIGINT; the endpoint goes to standard output."""
    parser = server_parser(
        "kinesis-local", "kinesis-local, another project's server for tests, on 127.0.0.1.", package="tests.servers"
    )
    options = parser.parse_args(arguments)
    found = find_kinesis_local()
    if found.reason:
        sys.stderr.write(f"{found.reason}\n")
        return 1
    stopping = stop_event(with_parent=options.exit_with_parent)
    port = options.port or free_port()
    process = _start(found, port)
    try:
        return _run(process, port, stopping)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
