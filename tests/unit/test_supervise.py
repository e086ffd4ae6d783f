"""Which failures a restart mends, and when supervising gives up."""

from __future__ import annotations

import random

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import StreamingQuery

from connectors.core.backoff import RetryPolicy
from connectors.core.errors import ConnectorError, OptionError, ServiceUnavailableError
from connectors.observe.supervise import judge, supervise

TRACEBACK = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR]
Traceback (most recent call last):
  File "reader.py", line 1, in latestOffset
connectors.core.errors.{kind}: [{code}] What is wrong (where). What to do. SQLSTATE: 38000
"""


@pytest.mark.parametrize(
    ("kind", "code", "mends"),
    [
        ("ServiceUnavailableError", "KAFKA_UNAVAILABLE", True),
        ("SpoolInUseError", "SPOOL_IN_USE", True),
        ("SpoolFullError", "SPOOL_DISK_FULL", True),
        ("DataLossError", "KAFKA_DATA_LOSS", False),
        ("CredentialsError", "PUBSUB_UNAUTHENTICATED", False),
        ("SpoolDamagedError", "SEGMENT_DAMAGED", False),
    ],
)
def test_an_error_of_the_pack_says_whether_it_passes(kind: str, code: str, mends: bool) -> None:
    verdict = judge(TRACEBACK.format(kind=kind, code=code))
    assert (verdict.mends, verdict.code) == (mends, code)
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
    assert judge(text).mends


@pytest.mark.parametrize("text", ["", "ZeroDivisionError: division by zero", "[TABLE_OR_VIEW_NOT_FOUND] no table"])
def test_what_is_not_known_to_pass_is_not_tried_again(text: str) -> None:
    assert not judge(text).mends


def test_an_error_of_the_pack_wins_over_the_process_that_ended_with_it() -> None:
    text = "Python worker exited unexpectedly\n" + TRACEBACK.format(kind="OffsetError", code="SPOOL_OTHER")
    assert not judge(text).mends


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
    start = Unreachable(ServiceUnavailableError("KAFKA_UNAVAILABLE", "Kafka does not answer"))
    waits: list[float] = []
    policy = RetryPolicy(initial_seconds=1, cap_seconds=4)
    with pytest.raises(ConnectorError, match="SUPERVISE_GAVE_UP") as error:
        supervise(start, max_restarts=5, policy=policy, sleep=waits.append)
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
