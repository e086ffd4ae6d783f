"""Sentences built as another language builds them: the patterns that a machine can see, with what to write instead.

``python -m tools.english`` lists them for this tree; a rule of the house holds that there are none in hand-written
pages, in the texts of errors and options, and in the docstrings and comments of `connectors`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

__all__ = ["PATTERNS", "violations"]

PATTERNS: Final[Mapping[str, str]] = {
    r"(?:^|(?<=[\"|])|(?<=[.:;|]\s))So (?:many|much|often|long|few|large)\b(?! as\b)": "a noun: portions per horizon",
    r"\b(?:is|are|was|were|to|of) none of\b": "outside, not one of",
    r"\bnone of this machine\b": "other machines",
    r"\b(?:that|which|it) (?:is|are) none\b": "that isn't one",
    r"\b(?:by|for|to) who\b": "the thing that acts: a process that polls it",
    r"\bwhat c[ao]mes? of\b": "the result",
    r"\bwhat [^.;,]{1,30} held to\b": "the limit",
    r"\b(?:give|gives|given) up to (?:who|those)\b": "the caller",
    r"\bgo(?:es)? on (?:where|from where|as)\b": "it resumes where it stopped",
    r"\b(?:how|[Ee]ach|[Ee]very) Spark (?:runs?|does|can|has|gives?|takes?|is|says?|that)\b": "each Spark version",
    r"\b[Ss]uch a Spark\b|\bA Spark that\b": "Spark versions that",
    r"\bthat of the Spark\b": "Spark's",
    r"\bin the way (?:it|they) (?:comes?|was|were)\b": "unchanged",
    r"\bwhich is why\b": "two sentences, or: so",
    r"\banew\b": "again",
    r"\b[Nn]obody knows\b": "isn't documented, is unknown",
    r"\bso many (?!\w+ (?:that|as)\b)": "that many, or the number's name",
    r"\bso often\b(?! (?:that|as)\b)": "that many times",
    r"\b(?:ends?|fails?|failed) by `?[A-Z]{3,}_[A-Z_]+": "fails with",
    r", (?:of|by|in|with|from|at|on) which\b": "a second sentence",
    r"\b(?:by|from|to|for|of) one that\b": "the noun again",
    r"\bas that of\b": "as with, like",
    r"(?:^|(?<=[.:;]\s))[Ww]ho (?:has|reads?|takes?|gives?|wants?) [^?]*?\.": "if you have, anyone who",
    r"\bthat it takes\b(?! (?:to|over|longer|more|less)\b)": "its",
    r"\b[Ss]park gives (?:an?|the) (?:\w+ ){1,2}no\b": "Spark has no",
    r"\bas of `?(?:kinesis|kafka|kafka_py|pubsub)\b": "as in",
    r"\b(?:\d[\d,.]*|one|two|three|four|five|ten) (?:(?!(?:of|with|that|in|for|by|to|is|as)\b)\w+ )?"
    r"a (?:batch|message|task|shard|row|partition)\b": "per batch",
    r"\bbeside (?:what|those|that)\b": "compared with, besides",
    r"\bwhatever (?:it|they|that) (?:is|are|was|were) (?:of|by)\b": "any",
    r"(?<!here)(?<!and)\s\b(?:is|are) no (?:JSON|text|list|object|number|frame|value|date|duplicate|part of)\b"
    r"(?!'| may)": "is not a list, is not JSON",
}
"""A pattern to what to write instead; a blank of a pattern stands for any white space, as between two lines."""

_ROOT: Final = Path(__file__).parent.parent
_PAGES: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_RECORDS: Final = ("docs/adr/", "docs/faults/")
_CODES: Final = "connectors/core/errors/codes.toml"
_FENCED: Final = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


_COMPILED: Final = {re.compile(one.replace(" ", r"\s+"), re.MULTILINE): instead for one, instead in PATTERNS.items()}


def violations(tree: Path) -> list[str]:
    """Return a line for each sentence with a pattern: where, what, and what to write instead."""
    return [
        f"{path.relative_to(tree)}:{line + text[: hit.start()].count(chr(10))}: {' '.join(hit[0].split())!r}: {instead}"
        for path in _files(tree)
        for line, text in _texts(path)
        for pattern, instead in _COMPILED.items()
        for hit in pattern.finditer(text)
    ]


def _files(tree: Path) -> Iterator[Path]:
    """Yield the pages, the table of errors and the modules; not records, and no page that is made from the modules."""
    pages = [*(tree / name for name in _PAGES), *sorted((tree / "docs").rglob("*.md")), tree / _CODES]
    for path in pages:
        name = path.relative_to(tree).as_posix()
        is_generated = name.startswith("docs/reference/") and path.name != "protobuf-behaviours.md"
        if path.is_file() and not is_generated and not name.startswith(_RECORDS):
            yield path
    yield from sorted((tree / "connectors").rglob("*.py"))


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file, each with its line: a page without its blocks of code, or strings and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, _FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
    elif path.suffix == ".toml":
        yield from enumerate(text.splitlines(), 1)
    else:
        yield from _comments(text)
        yield from _strings(text)


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments, those of lines that follow each other as one."""
    start, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != start + len(lines):
                yield start, "\n".join(lines)
                start, lines = token.start[0], []
            lines.append(token.string.lstrip("# "))
    yield start, "\n".join(lines)


def _strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield strings, docstrings among them; an f-string with an X for each of its values."""
    parts: set[ast.expr] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            yield node.lineno, "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node.lineno, re.sub(r"^ +", "", node.value, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in violations(_ROOT))
