"""Which failures a restart mends, and when supervising gives up."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from connectors.core.errors import ConnectorError, OptionError, ServiceUnavailableError
from connectors.observe.failure import full_text
from connectors.observe.supervise import judge, supervise

TRACEBACK = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR]
Traceback (most recent call last):
  File "reader.py", line 1, in latestOffset
connectors.core.errors.{kind}: [{code}] What is wrong (where). What to do. SQLSTATE: 38000
"""


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("ServiceUnavailableError", "KAFKA_UNAVAILABLE", True),
        ("SpoolInUseError", "SPOOL_IN_USE", True),
        ("SpoolFullError", "SPOOL_DISK_FULL", True),
        ("DataLossError", "KAFKA_DATA_LOSS", False),
        ("CredentialsError", "PUBSUB_UNAUTHENTICATED", False),
        ("SpoolDamagedError", "SEGMENT_DAMAGED", False),
    ],
)
def test_an_error_of_the_pack_says_whether_it_passes(kind: str, code: str, retryable: bool) -> None:
    verdict = judge(TRACEBACK.format(kind=kind, code=code))
    assert (verdict.retryable, verdict.code) == (retryable, code)
    assert "What is wrong" in verdict.why


@pytest.mark.parametrize(
    "text",
    [
        "java.io.EOFException\n\tat java.base/java.io.DataInputStream.readInt",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "java.net.SocketException: Connection reset",
        "Job aborted due to stage failure: ExecutorLostFailure (executor 2 exited)",
    ],
)
def test_a_process_that_was_lost_is_mended(text: str) -> None:
    assert judge(text).retryable


@pytest.mark.parametrize("text", ["", "ZeroDivisionError: division by zero", "[TABLE_OR_VIEW_NOT_FOUND] no table"])
def test_what_is_not_known_to_pass_is_not_tried_again(text: str) -> None:
    assert not judge(text).retryable


def test_an_error_of_the_pack_wins_over_the_process_that_ended_with_it() -> None:
    text = "Python worker exited unexpectedly\n" + TRACEBACK.format(kind="OffsetError", code="SPOOL_OTHER")
    assert not judge(text).retryable


class Unreachable:
    """Starts of a query that fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.starts = 0

    def __call__(self) -> StreamingQuery:
        self.starts += 1
        raise self.error


def test_it_gives_up_after_so_many_restarts_with_growing_waits() -> None:
    random.seed(7)
    start = Unreachable(ServiceUnavailableError("KAFKA_UNAVAILABLE", "Kafka does not respond"))
    waits: list[float] = []
    with pytest.raises(ConnectorError, match="SUPERVISE_GAVE_UP") as error:
        supervise(start, max_restarts=5, max_delay_seconds=4, sleep=waits.append)
    assert start.starts == 6
    assert len(waits) == 5
    assert all(0 <= wait <= ceiling for wait, ceiling in zip(waits, [1, 2, 4, 4, 4], strict=True))
    assert error.value.__cause__ is start.error


def test_what_a_restart_does_not_mend_is_raised_with_the_reason() -> None:
    start = Unreachable(OptionError("OPTION_MISSING", "The option x is required"))
    with pytest.raises(OptionError) as error:
        supervise(start, sleep=pytest.fail)
    assert start.starts == 1
    [note] = error.value.__notes__
    assert "OPTION_MISSING needs a change" in note


def test_an_error_of_spark_that_is_not_known_is_raised_with_the_reason() -> None:
    start = Unreachable(PySparkRuntimeError("[SOMETHING_ELSE] happened"))
    with pytest.raises(PySparkRuntimeError) as error:
        supervise(start, sleep=pytest.fail)
    assert "not restarted" in error.value.__notes__[0].lower()


@pytest.mark.parametrize("name", ["_stackTrace", "_stacktrace"], ids=["classic", "Connect"])
def test_the_stack_of_the_jvm_is_judged_too(name: str) -> None:
    error = PySparkException("[STREAM_FAILED] Query [id = 1] terminated with exception: null")
    setattr(error, name, "StreamingQueryException\nCaused by: java.io.EOFException\n\tat java.base/java.io")
    assert judge(full_text(error)).retryable


def report(batch: int, rows: int) -> StreamingQueryProgress:
    """A progress report as Spark Connect gives it: rows stand with its sources only."""
    nothing: dict[str, Any] = {"description": "", "startOffset": None, "endOffset": None, "latestOffset": None}
    rates = {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    return StreamingQueryProgress.fromJson(
        {
            "id": "00000000-0000-0000-0000-000000000001",
            "runId": "00000000-0000-0000-0000-000000000002",
            "name": None,
            "timestamp": "",
            "batchId": batch,
            "batchDuration": 1,
            "durationMs": {},
            "stateOperators": [],
            "sources": [{**nothing, **rates, "numInputRows": rows}],
            "sink": {"description": "", "numOutputRows": 0},
        }
    )


class Run:
    """A query that fails as a lost Python process does, after some reports; None: the server is gone."""

    def __init__(self, reports: list[StreamingQueryProgress] | None) -> None:
        self.reports = reports

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        raise PySparkRuntimeError("java.io.EOFException")

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802
        if self.reports is None:
            raise PySparkRuntimeError("[NO_ACTIVE_SESSION] the server is gone")
        return self.reports

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None


def restarts(*runs: list[StreamingQueryProgress] | None) -> int:
    """How often a query is started that fails so, and then at once again and again; two restarts are allowed."""
    starts: list[int] = []

    def start() -> Any:
        starts.append(1)
        return Run(runs[len(starts) - 1] if len(starts) <= len(runs) else [])

    with pytest.raises(ConnectorError, match="SUPERVISE_GAVE_UP"):
        supervise(start, max_restarts=2, sleep=lambda _: None)
    return len(starts)


def test_rows_begin_the_count_of_restarts_anew_over_connect_too() -> None:
    assert restarts([], [], []) == 3
    assert restarts([report(4, 0)], [report(4, 7)]) == 4


def test_rows_whose_reports_are_gone_are_known_by_the_batch() -> None:
    idle = [report(9, 0)] * 100
    assert restarts([report(4, 0)], idle) == 4
    assert restarts([], idle) == 4
    assert restarts([report(9, 0)], idle) == 3
    assert restarts([report(4, 0)], idle, idle) == 4


def test_a_server_that_is_gone_does_not_hide_why_the_query_failed(caplog: pytest.LogCaptureFixture) -> None:
    assert restarts(None, None, None) == 3
    assert "a Python process of Spark ended" in caplog.text
    assert "[SUPERVISE_NO_PROGRESS]" in caplog.text
