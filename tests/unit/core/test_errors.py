"""The table of error codes has every code of the code base, and no other; errors cannot forge lines of a log."""

from __future__ import annotations

import ast
import logging
import pickle
import re
from pathlib import Path

import pytest

from connectors.core.errors import (
    ConnectorError,
    OneLineFilter,
    OptionError,
    ServiceUnavailableError,
    error_from_json,
    one_line,
)
from tests.support.hostile_answers import FORGED
from tools.reference_errors import error_codes

ROOT = Path(__file__).parents[3]
CODES = {code.code: code for group in error_codes().values() for code in group}
NO_CODES = {"KAFKA_STORAGE_ERROR", "OFFSET_NOT_AVAILABLE", "OFFSET_OUT_OF_RANGE"}  # responses of brokers
NO_CODES |= {"ARROW_DEFAULT_MEMORY_POOL", "PUBSUB_EMULATOR_HOST", "TCP_QUICKACK"}
NO_CODES |= {"JAVA_HOME", "SPARK_HOME", "SPARK_LOCAL_IP"}
SOURCES = [
    path
    for path in sorted((ROOT / "connectors").rglob("*.py"))
    if "testing" not in path.relative_to(ROOT / "connectors").parts
]
TEXTS = {path: path.read_text(encoding="utf-8") for path in SOURCES}
WORD = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?:\.[A-Z0-9_]+)?"
CLASSES = {"analysis_error": "ProtobufAnalysisError", "data_error": "ProtobufDataError", "FindingError": "finding"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_text_that_is_made_like_a_code_is_declared(path: Path) -> None:
    """What begins like a declared code, what an error begins with, and what a line of the log has in brackets."""
    beginnings = {code.partition("_")[0] for code in CODES}
    names = set(re.findall(rf"^({WORD})\b", TEXTS[path], re.MULTILINE))  # of constants, which `__all__` has as texts
    alike = {text for text in re.findall(rf'"({WORD})"', TEXTS[path]) if text.partition("_")[0] in beginnings} - names
    raised = set(re.findall(rf'(?:Error|analysis_error|data_error)\(\s*"({WORD})"', TEXTS[path]))
    logged = set(re.findall(rf'"\[({WORD})\] ', TEXTS[path]))
    assert (alike - NO_CODES) | raised | logged <= set(CODES)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_error_has_the_class_that_its_code_declares(path: Path) -> None:
    made = re.findall(rf'\b(\w+Error|analysis_error|data_error)\(\s*"({WORD})"', TEXTS[path])
    wrong = [(name, code) for name, code in made if CLASSES.get(name, name) not in CODES[code].kinds]
    assert wrong == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_is_put_together(path: Path) -> None:
    """So that whoever searches the code for a code that was printed finds where it is made."""
    put_together = r'f"(?:[A-Z][A-Z0-9]*[_.][A-Z0-9_.]*\{|\{[^{}"]*\}_[A-Z0-9_]+")'
    assert re.findall(rf"(?:Error\(|_error\(|\bcode = |version\()\s*{put_together}", TEXTS[path]) == []


def test_every_declared_code_is_made_somewhere() -> None:
    text = "\n".join(TEXTS.values())
    assert [code for code in CODES if f'"{code}"' not in text and f"[{code}]" not in text] == []


def test_every_meaning_and_action_is_a_sentence() -> None:
    for code in CODES.values():
        for text in filter(None, (code.meaning, code.action)):
            assert text.endswith("."), code.code
            assert not re.search(r"<|\.\.\.", re.sub(r"`[^`]*`", "", text)), f"a placeholder in {code.code}"
    assert len(CODES) > 300


def test_an_error_without_advice_of_its_own_ends_with_the_advice_of_the_table() -> None:
    error = OptionError("OPTION_CONFLICT", "Two options", "a, b")
    assert str(error) == f"[OPTION_CONFLICT] Two options (a, b). {CODES['OPTION_CONFLICT'].action}"
    assert error.action == pickle.loads(pickle.dumps(error)).action == CODES["OPTION_CONFLICT"].action
    assert OptionError("OPTION_CONFLICT", "Two options", "a, b", "Leave b out.").action == "Leave b out."
    assert str(ConnectorError("CODE_OF_A_USER", "It failed")) == "[CODE_OF_A_USER] It failed."


def test_advice_in_an_error_is_plain_text() -> None:
    assert "`" in CODES["OPTION_SECRET_UNREADABLE"].action
    assert "`" not in OptionError("OPTION_SECRET_UNREADABLE", "It cannot be read").action


def test_no_error_repeats_the_advice_of_the_table() -> None:
    """The text of an advice stands in one place."""
    for path, text in TEXTS.items():
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            values = {node.value for node in ast.walk(call) if isinstance(node, ast.Constant)}
            advice = {CODES[value].action.replace("`", "") for value in values if value in CODES} - {""}
            assert values & advice == set(), f"{path}:{call.lineno}"


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
