"""Of the long text of a failure, the one line that says what is wrong is printed last."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from connectors.core.errors import ConnectorError, OptionError
from connectors.observe import summarize_failure, supervise
from connectors.observe.failure import summary

STACK = "\n".join(f"\tat org.apache.spark.Thing{number}.run(Thing.scala:{number})" for number in range(400))
OURS = "connectors.core.errors.SourceGoneError: [KAFKA_TOPIC_GONE] The topic is gone (orders). Create it."
OF_A_SOURCE = f"[STREAM_FAILED] Query terminated with exception:\nTraceback:\n{OURS}\n SQLSTATE: 38000\n{STACK}"
OF_A_SINK = f"[STREAM_FAILED] Query terminated with exception:\nZeroDivisionError: division by zero\n{STACK}\n"
PLAN = "=== Streaming Query ===\nIdentifier: [id = 1]\n\nLogical Plan:\n+- ~StreamingDataSourceV2ScanRelation pubsub\n"
OF_A_BATCH_FUNCTION = (
    f"[STREAM_FAILED] Query: Traceback:\nRuntimeError: the sink is broken\n SQLSTATE: 39000 SQLSTATE: XXKST\n{PLAN}"
)


def printed(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StreamingQueryException(OF_A_SOURCE), "[KAFKA_TOPIC_GONE] The topic is gone (orders). Create it."),
        (StreamingQueryException(OF_A_SINK), "ZeroDivisionError: division by zero"),
        (StreamingQueryException(OF_A_BATCH_FUNCTION), "RuntimeError: the sink is broken"),
        (Exception(OF_A_SOURCE), "[KAFKA_TOPIC_GONE] The topic is gone (orders). Create it."),  # as py4j's are
        (OptionError("OPTION_MISSING", "No x", "", "Give x."), "[OPTION_MISSING] No x. Give x."),
        (ValueError(), "ValueError"),
    ],
)
def test_the_summary_is_our_error_or_the_last_reason(error: Exception, line: str) -> None:
    assert summary(error) == line


def test_our_error_below_another_is_found_and_in_the_stack_of_the_jvm() -> None:
    outer = RuntimeError("one\ntwo")
    outer.__cause__ = StreamingQueryException(OF_A_SOURCE)
    assert summary(outer).startswith("[KAFKA_TOPIC_GONE]")
    bare = PySparkException("[STREAM_FAILED] Query terminated with exception: null")
    bare._stackTrace = OF_A_SOURCE  # type: ignore[attr-defined]
    assert summary(bare).startswith("[KAFKA_TOPIC_GONE]")


def test_a_summary_is_short() -> None:
    assert len(summary(Exception("first\n" + "x" * 5000))) == 1000


@pytest.mark.parametrize("text", [OF_A_SOURCE, OF_A_SINK])
@pytest.mark.parametrize("supervised", [False, True])
def test_the_last_line_that_a_program_prints_says_what_is_wrong(text: str, supervised: bool, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "from pyspark.errors import StreamingQueryException\n"
        "from connectors.observe import summarize_failure, supervise\n"
        "def start():\n"
        f"    raise StreamingQueryException({text!r})\n"
        + ("supervise(start)\n" if supervised else "with summarize_failure():\n    start()\n")
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == summary(StreamingQueryException(text))
    assert len(done.stderr.splitlines()) > 400


def test_it_is_added_once_and_the_error_is_raised_as_it_was() -> None:
    error = StreamingQueryException(OF_A_SOURCE)
    with pytest.raises(StreamingQueryException) as raised, summarize_failure(), summarize_failure():
        raise error
    assert raised.value is error
    assert error.__notes__ == [summary(error)]


def test_an_error_of_one_line_is_its_own_summary() -> None:
    error = OptionError("OPTION_MISSING", "No x", "", "Give x.")
    with pytest.raises(OptionError), summarize_failure():
        raise error
    assert printed(error)[-1].endswith("[OPTION_MISSING] No x. Give x.")
    assert not hasattr(error, "__notes__")


def test_of_a_query_that_is_given_up_the_last_line_is_short() -> None:
    text = OF_A_SOURCE.replace("SourceGoneError", "ServiceUnavailableError")

    def start() -> None:
        raise StreamingQueryException(text)

    with pytest.raises(ConnectorError) as error, summarize_failure():
        supervise(start, max_restarts=1, sleep=lambda _: None)  # type: ignore[arg-type, func-returns-value]
    last = printed(error.value)[-1]
    assert "[SUPERVISE_GAVE_UP]" in last
    assert "The topic is gone" in last
    assert len(last) < 500
