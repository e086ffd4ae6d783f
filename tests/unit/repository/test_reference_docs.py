"""The reference pages say what the code declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.reference import pages

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("path", sorted(pages()), ids=str)
def test_a_reference_page_is_what_the_code_declares(path: Path) -> None:
    assert (ROOT / path).read_text() == pages()[path], "run ./dev docs"


@pytest.mark.parametrize(
    "link",
    [
        "docs/reference/pubsub.md",
        "docs/reference/kafka.md",
        "docs/reference/kinesis.md",
        "docs/reference/protobuf.md",
        "docs/reference/protobuf-behaviours.md",
        "docs/explanation/behaviours.md",
        "docs/explanation/kafka.md",
        "docs/explanation/kinesis.md",
        "docs/explanation/pubsub-sink.md",
        "docs/explanation/kinesis-sink.md",
        "docs/explanation/kafka-exactly-once.md",
    ],
)
def test_a_page_that_the_code_names_is_there(link: str) -> None:
    assert (ROOT / link).is_file()
