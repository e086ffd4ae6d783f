"""Server programs as child processes."""

from __future__ import annotations

from pathlib import Path

from connectors.testing.kafka.mock import MockKafkaProcess


def states_of_threads(pid: int) -> set[str]:
    """The states of its threads, as the kernel names them: T is stopped."""
    stats = (path.read_text() for path in Path("/proc", str(pid), "task").glob("*/stat"))
    return {text.rpartition(")")[2].split()[0] for text in stats}


def test_no_thread_of_a_stalled_server_runs_on() -> None:
    with MockKafkaProcess() as server:
        for _ in range(200):
            with server.stalled():
                assert states_of_threads(server.pid) == {"T"}
        assert server.is_running()
