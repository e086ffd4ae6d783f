"""Stands for an executor and its Python worker, for tests of `connectors.spool.fetching.detached` without Spark.

    python -m tests.support.executor_process            # an executor: each line of its input is the order of a task
    python -m tests.support.executor_process worker     # a worker: runs one task, and ends

The worker is a child of the executor, as Spark's daemon is of a JVM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from connectors.spool.fetching.detached import start_in_task
from connectors.spool.fetching.messages import FetchPlan, encode


class ExecutorProcess:
    """A running executor, with some more variables in its environment; a context manager that kills it."""

    def __init__(self, plan: FetchPlan, environment: Mapping[str, str] | None = None) -> None:
        self._plan = encode(plan).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._process.pid

    def run(self, job: str, number: int, round_: int = 0, most: int = 100) -> dict[str, Any]:
        """Run the task that starts a fetcher; its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"job": job, "number": number, "round": round_, "at_executor": most, "on_machine": 100}
        self._process.stdin.write(json.dumps({"order": order, "plans": [self._plan]}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def kill(self) -> None:
        """SIGKILL it, as the kernel or an operator would."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    if sys.argv[1:] == ["worker"]:
        task = json.loads(sys.stdin.readline())
        sys.stdout.write(start_in_task(task["order"], [plan.encode() for plan in task["plans"]]) + "\n")
        return
    for line in sys.stdin:
        subprocess.run([sys.executable, "-m", __spec__.name, "worker"], input=line, text=True, check=True)


if __name__ == "__main__":
    main()
