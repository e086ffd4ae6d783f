"""What the pages of the documentation name, and what of it does not exist: a line for each name that does not.

A check takes a `Page` and gives its violations. What the pages may name comes from the code itself, from Spark's own
classes, or from the tree.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import itertools
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

from connectors.avro.options import AvroOptions
from connectors.core.options.declaration import declared_options
from connectors.json.options import JsonOptions
from connectors.kafka.options.sink import KafkaWriteOptions
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.schema import source_schema
from connectors.kinesis.options.sink import KinesisWriteOptions
from connectors.kinesis.options.source import KinesisReadOptions
from connectors.kinesis.schema import source_schema as kinesis_schema
from connectors.protobuf.options import ProtobufOptions
from connectors.pubsub.options.kinds import DELETE_ON_STOP
from connectors.pubsub.options.sink import PubSubWriteOptions
from connectors.pubsub.options.source import PubSubReadOptions
from connectors.pubsub.schema import DATABRICKS_SCHEMA, STREAM_SCHEMA
from connectors.registry.azure import AzureOptions
from connectors.registry.glue.options import GlueOptions
from connectors.registry.options import RegistryOptions
from tools.reference_commands import commands
from tools.reference_errors import error_codes
from tools.reference_python import PUBLIC_MODULES, TESTING_MODULES

ROOT = Path(__file__).parents[2]
OPTIONS: dict[tuple[str, str], type] = {
    ("pubsub", "read"): PubSubReadOptions,
    ("pubsub", "write"): PubSubWriteOptions,
    ("kinesis", "read"): KinesisReadOptions,
    ("kinesis", "write"): KinesisWriteOptions,
    ("kafka_py", "read"): KafkaReadOptions,
    ("kafka_py", "write"): KafkaWriteOptions,
}
SPARK_OPTIONS = {"checkpointLocation", "path", "queryName"}
SPARK_OPTIONS |= {"asyncProgressTrackingEnabled", "asyncProgressTrackingCheckpointIntervalMs"}
# Those of Spark itself and of jars, which have options of their own.
_MARKDOWN = MarkdownIt("commonmark").enable("table")
FOREIGN_FORMATS = {"kafka", "parquet", "delta", "jdbc", "memory", "console", "noop", "rate", "queue"}


@dataclass(frozen=True)
class Page:
    """A page: its path below the tree, its text."""

    path: Path
    text: str
    tree: Path = ROOT

    @cached_property
    def prose(self) -> str:
        """The text without blocks of code."""
        return re.sub(r"^( *)```.*?^\1```$", "", self.text, flags=re.MULTILINE | re.DOTALL)

    def blocks(self, *languages: str) -> list[str]:
        """The blocks of code in a language."""
        found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", self.text, re.MULTILINE | re.DOTALL)
        return [textwrap.dedent(text) for _, language, text in found if language in languages]

    @cached_property
    def names(self) -> list[str]:
        """What stands in backticks in the prose."""
        return [" ".join(name.split()) for name in re.findall(r"(?<!`)`([^`]+)`(?!`)", self.prose)]

    @cached_property
    def _parsed(self) -> tuple[list[Token], dict[str, Any]]:
        definitions: dict[str, Any] = {}
        return _MARKDOWN.parse(self.text, definitions), definitions

    @property
    def tokens(self) -> list[Token]:
        """What the page consists of, as a reader of Markdown sees it."""
        return self._parsed[0]

    @property
    def references(self) -> list[str]:
        """The names of the targets that stand apart from their links."""
        return list(self._parsed[1].get("references", ()))

    @property
    def inline(self) -> Iterator[tuple[int, Token]]:
        """What stands in its lines: links, images, tags, text; with the line where their paragraph begins."""
        for token in self.tokens:
            yield from ((token.map[0] + 1 if token.map else 0, child) for child in token.children or ())

    @cached_property
    def command_lines(self) -> list[list[str]]:
        """The words of each command in its blocks for the shell and in its backticks."""
        lines = [line for block in self.blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
        found = (_words(line) for line in [*lines, *self.names])
        return [words for words in found if words]


def pages(tree: Path = ROOT) -> list[Page]:
    """The pages of a tree."""
    files = [*tree.glob("*.md"), *(tree / "docs").rglob("*.md")]
    return [Page(path.relative_to(tree), path.read_text(encoding="utf-8"), tree) for path in sorted(files)]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []


# Python


def python_violations(page: Page) -> Iterator[str]:
    """Blocks that do not compile, imports that fail or are not public, options that a format does not have."""
    for block in page.blocks("python"):
        try:
            tree = ast.parse(block)
        except SyntaxError as error:
            if not _is_signature(page):
                yield f"{page.path}: a block is no Python, line {error.lineno}: {error.text}"
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                yield from (f"{page.path}: {text}" for text in import_violations(node))
            elif isinstance(node, ast.Call):
                yield from (f"{page.path}: {text}" for text in option_violations(node))


def _is_signature(page: Page) -> bool:
    """Generated pages show signatures, which are no statements."""
    return page.path.parent.name == "reference"


def import_violations(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Imports of this pack that are not there, or not promised."""
    if isinstance(node, ast.Import):
        names = [(alias.name, "") for alias in node.names]
    else:
        names = [(node.module or "", alias.name) for alias in node.names]
    for module, name in names:
        if module.split(".")[0] == "connectors":
            if module not in {*PUBLIC_MODULES, *TESTING_MODULES}:
                yield f"{module} is imported and not public"
            elif (
                name
                and name not in importlib.import_module(module).__all__
                and f"{module}.{name}" not in PUBLIC_MODULES
            ):
                yield f"{module} promises no {name}"
        elif module.split(".")[0] in {"pyspark", "tools"}:
            found = importlib.import_module(module)
            is_module = hasattr(found, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None
            if name and not hasattr(found, name) and not is_module:
                yield f"{module} has no {name}"


def option_violations(call: ast.Call) -> Iterator[str]:
    """Options in a chain of calls with ``.format("x")`` that this format does not have, reading or writing."""
    given = list(_given_options(call))
    if not given:
        return
    formats, verbs = set[str](), set[str]()
    for node in _chain(call):
        if isinstance(node, ast.Attribute):
            verbs |= {kind for kind in ("read", "write") if node.attr.startswith(kind)}
        elif _called(node) == "format" and isinstance(node, ast.Call) and isinstance(node.args[0], ast.Constant):
            formats.add(str(node.args[0].value))
    if formats & FOREIGN_FORMATS:
        return
    legal = option_names(formats, verbs)
    yield from (f"no option {name} of {sorted(formats)}" for name in given if not is_option(name, legal))


def _given_options(call: ast.Call) -> Iterator[str]:
    if (
        _called(call) == "option"
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    ):
        yield call.args[0].value
    if _called(call) == "options":
        yield from (keyword.arg for keyword in call.keywords if keyword.arg)


def _called(node: ast.AST) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _chain(node: ast.AST) -> Iterator[ast.AST]:
    """The calls and attributes before a call in its chain."""
    while isinstance(node, ast.Call | ast.Attribute):
        yield node
        node = node.func if isinstance(node, ast.Call) else node.value


@cache
def _all_options(key: tuple[str, str]) -> frozenset[str]:
    declared = declared_options(OPTIONS[key]).values()
    return frozenset(name for one in declared for name in (one.name, *one.aliases, *one.instead_of))


def option_names(formats: set[str] = frozenset(), verbs: set[str] = frozenset()) -> set[str]:
    """The options of some formats, reading or writing; of all where nothing is said."""
    keys = [key for key in OPTIONS if (not formats or key[0] in formats) and (not verbs or key[1] in verbs)]
    return {name for key in keys for name in _all_options(key)} | SPARK_OPTIONS | {DELETE_ON_STOP}


def is_option(name: str, legal: set[str]) -> bool:
    """Whether a name is among the options, or a setting of Kafka's client."""
    return name in legal or (name.startswith("kafka.") and "groupIdPrefix" in legal)


# Commands


def command_violations(page: Page) -> Iterator[str]:
    """Commands of the pack, verbs of ./dev and modules that cannot be run, or not with these arguments."""
    saved = set(re.findall(r"[Ss]ave\s+this\s+as\s+`([^`]+)`", page.text))
    for words in page.command_lines:
        check = _CHECKS.get(words[0])
        if check is not None and len(words) > 1 and words[1] not in saved:
            yield from (f"{page.path}: {' '.join(words)}: {text}" for text in check(page.tree, words[1:]))


def _pack_command(_: Path, words: list[str]) -> Iterator[str]:
    known = {command.words: command for command in commands()}
    name = next((" ".join(["connectors", *words[:count]]) for count in (2, 1) if _name(words, count) in known), "")
    if words[0].startswith("-"):
        return
    if not name:
        groups = {each.split()[1] for each in known if each.count(" ") > 1}
        if words[0] not in groups or (len(words) > 1 and words[1].isalpha()):
            yield "no such command"
        return
    flags = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    yield from (f"no flag {flag}" for flag in sorted(flags - known[name].flags))
    if "--format" in words:
        formats = {words[words.index("--format") + 1]}
        pairs = [after.partition("=")[0] for before, after in itertools.pairwise(words) if before == "-o"]
        legal = option_names(formats, {"read"})
        yield from (f"no option {pair}" for pair in pairs if not is_option(pair, legal))


def _name(words: list[str], count: int) -> str:
    return " ".join(["connectors", *words[:count]])


def _dev(tree: Path, words: list[str]) -> Iterator[str]:
    usage = (tree / "dev").read_text(encoding="utf-8")
    words = [word for word in words if word not in {"--install-java", "--lowest"}]
    if not words or words[0] == "--help":
        return
    if not re.search(rf"^  {re.escape(words[0])}\b", usage, re.MULTILINE):
        yield "no such verb"
    folder = {"chaos": "tests/chaos", "bench": "bench"}.get(words[0])
    if folder and len(words) > 1 and words[1].startswith("--"):
        if not re.search(rf"^  {re.escape(words[0])} {re.escape(words[1])}\b", usage, re.MULTILINE):
            yield f"no flag {words[1]}"
    elif folder and len(words) > 1 and words[1].islower() and not (tree / folder / f"{words[1]}.py").is_file():
        yield f"no file for it in {folder}"


def _python(tree: Path, words: list[str]) -> Iterator[str]:
    if words[0] == "-m" and words[1] not in {"pip", "venv"}:
        if importlib.util.find_spec(words[1]) is None:
            yield "no such module"
    elif words[0].endswith(".py") and not (tree / words[0]).is_file():
        yield "no such file"


_CHECKS: dict[str, Callable[[Path, list[str]], Iterator[str]]] = {
    "connectors": _pack_command,
    "./dev": _dev,
    "python": _python,
}


# Links and names


def link_violations(page: Page) -> Iterator[str]:
    """Links and images that lead nowhere, and text that Markdown takes for a link or hides as a tag."""
    for line, token in page.inline:
        if token.type in {"link_open", "image"}:
            target = unquote(str(token.attrs.get("href", token.attrs.get("src"))))
            yield from (f"{page.path}:{line}: {text}" for text in _target_violations(page, target))
        elif token.type == "html_inline" and not token.content.startswith("<!--"):
            yield f"{page.path}:{line}: {token.content} is a tag of HTML, which no reader sees"
        elif token.type == "text" and re.search(r"(?<!\w)\[[^\]]+\][\[(]", token.content):
            yield f"{page.path}:{line}: a link without its target: {token.content}"
    yield from (f"{page.path}: [{name.lower()}]: makes links of all such brackets" for name in page.references)


def _target_violations(page: Page, target: str) -> Iterator[str]:
    if re.match(r"https?://|mailto:", target):
        return
    if re.match(r"[a-zA-Z][\w+.-]*:", target):
        yield f"{target} became a link"
        return
    name, _, anchor = target.partition("#")
    path = page.tree / page.path.parent / name
    if name and not path.exists():
        yield f"a link to {target}, which is not there"
    elif anchor and anchor not in anchors(path.read_text(encoding="utf-8") if name else page.text):
        yield f"a link to {target}, which has no such heading"


@cache  # a page of errors has hundreds of links into itself
def anchors(text: str) -> set[str]:
    """The anchors of a page, as GitHub and the site make them of its headings."""
    counts: dict[str, int] = {}
    tokens = _MARKDOWN.parse(text)
    for before, heading in itertools.pairwise(tokens):
        if before.type == "heading_open":
            shown = "".join(child.content for child in heading.children or ())
            slug = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
            counts[slug] = counts.get(slug, 0) + 1
    return {slug if not number else f"{slug}-{number}" for slug, count in counts.items() for number in range(count)}


# Tables


def table_violations(page: Page) -> Iterator[str]:
    """Rows outside of any table, and rows with more or fewer cells than their table has columns."""
    lines = page.text.splitlines()
    for before, token in itertools.pairwise(page.tokens):
        if before.type == "table_open" and before.map:
            rows = {number + 1: _cells(lines[number]) for number in range(*before.map)}
            columns = rows[before.map[0] + 1]
            yield from (
                f"{page.path}:{number}: a row of {cells} cells in a table of {columns} columns"
                for number, cells in rows.items()
                if cells != columns
            )
        elif before.type == "paragraph_open" and before.map and re.search(r"^\|", token.content, re.MULTILINE):
            yield f"{page.path}:{before.map[0] + 1}: a row that is in no table: {token.content[:40]}"


def _cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line.strip().strip("|"))) + 1


_FOLDERS = r"(?:docs|tests|connectors|examples|bench|tools|proto|docker)"


def name_violations(page: Page) -> Iterator[str]:
    """Files, modules, error codes and options in backticks that are not there."""
    for name in page.names:
        for pattern, kind, exists in _NAMES:
            if re.fullmatch(pattern, name):
                if not exists(page.tree, name):
                    yield f"{page.path}: no {kind} {name}"
                break


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or a name in one, or an attribute of that."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


_NAMES: tuple[tuple[str, str, Callable[[Path, str], Any]], ...] = (
    (rf"{_FOLDERS}/[\w./*-]+", "file", lambda tree, name: list(tree.glob(name.rstrip("/")))),
    (r"test_\w+\.py", "test", lambda tree, name: list((tree / "tests").rglob(name))),
    (r"connectors(\.\w+)+(\(.*\))?", "name", lambda _, name: resolves(name.partition("(")[0])),
    (
        r"(SPOOL|PUBSUB|KAFKA|KINESIS|OPTION|PROTOBUF|SPARK|OBSERVE|SUPERVISE)_[A-Z0-9_]+",
        "error",
        lambda _, name: name in codes_of_errors(),
    ),
    (
        r"[a-z]+[A-Z]\w+(=[^ ]*)?",
        "option, column or parameter",
        lambda _, name: name.partition("=")[0] in known_names(),
    ),
)


@cache
def codes_of_errors() -> frozenset[str]:
    """The codes of errors and warnings, and the texts in the code that may be."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "connectors").rglob("*.py"))
    made = {code.code for group in error_codes().values() for code in group}
    return frozenset(made | set(re.findall(r"\b[A-Z]{3,}(?:_[A-Z0-9]+)+\b", text)))


@cache
def known_names() -> frozenset[str]:
    """What a name in camelCase may be: an option, a column, a parameter of a public function, or a name of Spark's."""
    schemas = (STREAM_SCHEMA, DATABRICKS_SCHEMA, kinesis_schema(), source_schema(headers=True))
    columns = {column for schema in schemas for column in schema.names}
    functions = (getattr(importlib.import_module(module), name) for module, name in public_names())
    parameters = {name for one in functions if inspect.isfunction(one) for name in inspect.signature(one).parameters}
    spark = (DataFrame, DataSourceReader, DataStreamReader, DataStreamWriter, SparkSession, SparkSession.Builder)
    methods = {name for kind in spark for name in dir(kind)} | {"availableNow", "processingTime"}
    protobuf = {
        name
        for kind in (AvroOptions, JsonOptions, ProtobufOptions, RegistryOptions, GlueOptions, AzureOptions)
        for one in declared_options(kind).values()
        for name in (one.name, *one.aliases)
    }
    others = {"explicitHashKey"}  # a column that only the sink has
    others |= {"txnAppId", "txnVersion"}  # Delta's
    others |= {"avroSchemaEvolutionMode", "rescuedDataColumn"}  # Databricks'
    others |= {f"{way}{kind}Avro" for way in ("from", "to") for kind in ("Confluent", "Simple")}  # ABRiS'
    others |= {"downloadReaderSchemaByLatestVersion", "downloadSchemaByLatestVersion"}
    others |= {"allOf", "anyOf", "oneOf", "additionalProperties", "patternProperties"}  # of JSON Schema
    others |= {"dependentSchemas", "unevaluatedProperties"}
    others |= {"recordName", "schemaId", "schemaIds"}  # of a type of from_mixed
    others |= {"ignoreNullFields", "contentId", "globalId"}  # of Spark's to_json, and Apicurio's
    others |= {"ruleSet", "domainRules", "encodingRules", "migrationRules", "onFailure"}  # of Confluent's registry
    return frozenset(option_names() | columns | parameters | methods | protobuf | others)


def public_names() -> list[tuple[str, str]]:
    """Every public module with each name that it promises."""
    modules = (*PUBLIC_MODULES, *TESTING_MODULES)
    return [(module, name) for module in modules for name in importlib.import_module(module).__all__]


CHECKS = (python_violations, command_violations, link_violations, table_violations, name_violations)


def violations(page: Page) -> list[str]:
    """Everything a page names that does not exist."""
    return [text for check in CHECKS for text in check(page)]
