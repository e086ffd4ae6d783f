"""The page of error codes has every code of the code base, however the code comes to its place."""

from __future__ import annotations

import logging
import pickle
import re
import textwrap
from pathlib import Path

import pytest

from connectors.core.errors import OneLineFilter, ServiceUnavailableError, error_from_json, one_line
from connectors.kinesis.client.errors import service_error
from connectors.protobuf.errors import CONDITIONS
from tests.support.hostile_answers import FORGED
from tools.error_codes import ErrorCode, error_codes

ROOT = Path(__file__).parents[3]
NO_CODES = {"KAFKA_STORAGE_ERROR", "OFFSET_NOT_AVAILABLE", "OFFSET_OUT_OF_RANGE"}  # answers of brokers
NO_CODES |= {"SPOOL_ID_RUN", "SPOOL_RECORD", "SPOOL_SEGMENT"}  # beginnings of codes
NO_CODES |= {"PUBSUB_EMULATOR_HOST"}
HEADINGS = re.findall(r"^### `(.+)`$", (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8"), re.MULTILINE)
SOURCES = [
    path
    for path in sorted((ROOT / "connectors").rglob("*.py"))
    if "testing" not in path.relative_to(ROOT / "connectors").parts
]


def planted(tree: Path, text: str, **others: str) -> dict[str, ErrorCode]:
    """The codes of a tree with a module of this text, beside others."""
    for name, source in {"planted": text, **others}.items():
        path = tree / "connectors" / "kafka" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    return {code.code: code for code in error_codes(tree)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_code_that_stands_where_an_error_is_made_is_on_the_page(path: Path) -> None:
    """By the text alone, without the syntax tree that the page is made from."""
    text = path.read_text(encoding="utf-8")
    raised = set(re.findall(r'(?:Error|analysis_error|data_error)\(\s*"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"', text))
    logged = set(re.findall(r'"\[([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\] ', text))
    prefixed = set(re.findall(r'"((?:SPOOL|PUBSUB|KAFKA|KINESIS|OPTION|OFFSET|OBSERVE)_[A-Z0-9_]+)"', text))
    assert raised | logged | prefixed - NO_CODES <= set(HEADINGS)


@pytest.mark.parametrize(
    "code",
    [
        "SPOOL_SEGMENT_DAMAGED",  # the field of a declared kind, and an ending
        "SPOOL_ID_RUN_VERSION",
        "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",  # a beginning, and what two functions hand on
        "KAFKA_UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        "KINESIS_DATA_LOSS.TRIMMED",
        "KINESIS_ACCESS_DENIED",  # a field of a table
        "KINESIS_BAD_ROW",  # an imported constant
        "KAFKA_NO_BATCH_ID",  # an argument to another package
        "FETCH_JOB_FAILED",  # what stands behind an "or"
        "KAFKA_ADVERTISED_UNREACHABLE",  # a copy of an error, of its class
        "MALFORMED_PROTOBUF_MESSAGE",  # one of Spark's
        "SUPERVISE_RESTART",  # a line of the log
    ],
)
def test_a_code_that_is_put_together_is_on_the_page(code: str) -> None:
    assert code in HEADINGS


def test_a_code_stands_on_the_page_once() -> None:
    assert len(set(HEADINGS)) == len(HEADINGS) > 250


def test_an_error_is_shown_with_what_is_wrong_and_what_to_do() -> None:
    (denied,) = [code for code in error_codes() if code.code == "KINESIS_ACCESS_DENIED"]
    assert {meaning.kind for meaning in denied.meanings} == {"AccessDeniedError"}
    operations = ("GetRecords", "AssumeRole")
    answer = {"Error": {"Code": "AccessDeniedException"}}
    raised = [service_error(operation, "orders", answer) for operation in operations]
    shown = [
        meaning.action.format(operation=operation)
        for meaning, operation in zip(denied.meanings, operations, strict=True)
    ]
    assert [(error.code, error.action) for error in raised] == [(denied.code, action) for action in shown]


def test_one_of_sparks_errors_is_shown_with_sparks_text() -> None:
    (parse,) = [code for code in error_codes() if code.code == "CANNOT_LOAD_PROTOBUF_CLASS"]
    assert parse.meanings[0].what == CONDITIONS[parse.code][0]


def test_a_caller_in_another_module_gives_a_code_and_its_text(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        """
        def refused(code: str, what: str) -> Exception:
            return ConnectorError(f"KAFKA_{code}", what, "here", "Do it.")
        """,
        caller="""
        from connectors.kafka.planted import refused

        def one(name):
            text = f"{name} is wrong"
            raise refused("ONE", text)

        def two():
            text = "another"
            raise refused("TWO", "always")
        """,
    )
    assert {code: found[code].meanings[0].what for code in found} == {
        "KAFKA_ONE": "<name> is wrong.",
        "KAFKA_TWO": "always.",
    }
    assert found["KAFKA_ONE"].meanings[0].action == "Do it."


def test_a_function_of_the_same_name_elsewhere_gives_nothing(tmp_path: Path) -> None:
    text = """
    PREFIX = "KAFKA"
    def refused(code):
        raise SpoolError(f"{PREFIX}_{code}", "It is so")
    def ask():
        refused("ONE")
    """
    found = planted(tmp_path, text, other=text.replace("ONE", "TWO").replace('= "KAFKA"', ': str = "SPOOL"'))
    assert set(found) == {"KAFKA_ONE", "SPOOL_TWO"}


def test_the_last_text_before_an_error_is_the_one_shown(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        """
        def check(full):
            what = "first"
            if full:
                what = "second"
                raise SpoolError("SPOOL_FULL", what)
            raise SpoolError("SPOOL_EMPTY", what)
        """,
    )
    assert [meaning.what for code in ("SPOOL_FULL", "SPOOL_EMPTY") for meaning in found[code].meanings] == [
        "second.",
        "second.",
        "first.",
    ]


def test_a_code_that_cannot_be_followed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"connectors\.kafka\.planted:3: the code"):
        planted(tmp_path, "\ndef check(table):\n    raise SpoolError(table['x'], 'It is so')\n")


CLEAN = "no[2J]0;title row 26/11/26 INFO forged line end"


def test_what_services_say_cannot_control_a_terminal_or_forge_a_line_of_a_log() -> None:
    assert one_line(FORGED).replace("  ", " ") == CLEAN
    error = ServiceUnavailableError("CODE", FORGED, FORGED, "Try\n\tagain\x1b[1m.")
    for text in (str(error), str(pickle.loads(pickle.dumps(error))), str(error_from_json(error.to_json()))):
        first, *rest = text.splitlines()
        assert first.startswith("[CODE] no[2J]0;title row 26/11/26 INFO forged")
        assert rest == ["\tagain[1m."]
        assert all(each.isprintable() or each in "\n\t" for each in text)


def test_a_log_of_what_a_service_has_said_has_one_line_for_each_record() -> None:
    record = logging.makeLogRecord({"msg": "%s: %s", "args": ("FAIL", FORGED)})
    assert OneLineFilter().filter(record)
    assert record.getMessage().replace("  ", " ") == f"FAIL: {CLEAN}"
    assert logging.makeLogRecord({"msg": one_line("100 %s"), "args": None}).getMessage() == "100 %s"
