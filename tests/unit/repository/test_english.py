"""The check of sentences finds each of its patterns, on pages and in the texts of the code, and little else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.english import PATTERNS, violations

PLANTED = [
    "So many portions has a horizon.",
    "So often in a row nothing\nmust lie ahead.",
    "It is an endpoint that is none of AWS.",
    "An http: URL to\nnone of this machine is refused.",
    "It takes a name that is none.",
    "It may be taken by who reads it.",
    "It logs what came of it.",
    "See what it is held to.",
    "The error is given up to who called.",
    "Killed, it goes on\nwhere it was.",
    "The page says how Spark runs them.",
    "Such a Spark asks for one batch.",
    "It is that of the Spark from pip.",
    "The value is left in the way it comes.",
    "It is slow, which is why it waits.",
    "The index is made anew.",
    "Where nobody knows, there is a knob.",
    "It waits for so many seconds.",
    "It fails so often in a row.",
    "The query ends by `LOCATION_ALREADY_EXISTS`.",
    "A record, of\nwhich that is unknown.",
    "The lock is taken by one that polls.",
    "A limit as that of Spark.",
    "Who has a cluster needs no archive.",
    "Give a mode that it takes.",
    "Spark gives a Python sink no mode.",
    "Credentials are as of kinesis.",
    "It makes 2 calls a batch.",
    "How fast it is beside what there is.",
    "It needs no scope, whatever they are of.",
    "The response is no JSON.",
]
RIGHT = [
    "There are so many shards that four tasks read them.",
    "It fails so often that the query ends.",
    "None of the rows is lost, and none of them twice.",
    "The page says who is trusted with what.",
    "Each Spark version runs them. Every Spark session has its own.",
    "What comes out is one row per message, 16 MB per batch at most.",
    "The time it takes to start is short.",
    "It fails with `LOCATION_ALREADY_EXISTS`.",
]


@pytest.mark.parametrize("text", PLANTED)
def test_a_sentence_with_a_pattern_is_found_on_a_page(text: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"# Title\n\nA first sentence.\n{text}\n")
    assert [line for line in violations(tmp_path) if line.startswith("README.md:4: ")]


@pytest.mark.parametrize("text", PLANTED)
@pytest.mark.parametrize("form", ['"""Close it.\n\n    {}\n    """', "# {}", 'error = f"{{place}}: {}"'])
def test_a_sentence_with_a_pattern_is_found_in_code(text: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "connectors").mkdir()
    comment = text.replace("\n", "\n# ") if form.startswith("#") else text.replace("\n", " ")
    (tmp_path / "connectors" / "a.py").write_text(form.format(comment) + "\n")
    assert violations(tmp_path)


@pytest.mark.parametrize("text", RIGHT)
def test_plain_english_passes(text: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(text)
    assert violations(tmp_path) == []


def test_records_decisions_and_blocks_of_code_are_passed(tmp_path: Path) -> None:
    for name in ("docs/adr/0001.md", "docs/faults/report.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(PLANTED[0])
    (tmp_path / "README.md").write_text(f"```text\n{PLANTED[0]}\n```\n")
    assert violations(tmp_path) == []


@pytest.mark.parametrize("path", ["connectors/core/errors/codes.toml", "connectors/kafka/options/source.py"])
def test_errors_and_options_are_read_as_pages_are(path: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text('meaning = "The lock is taken by one that polls."\n')
    assert violations(tmp_path)


def test_every_pattern_has_a_planted_sentence() -> None:
    unseen = [one for one in PATTERNS if not any(re.search(one.replace(" ", r"\s+"), text) for text in PLANTED)]
    assert unseen == []
