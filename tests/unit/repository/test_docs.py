"""The documentation and the code name the same things: nothing public without a page, nothing on a page that is not."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import connectors
from connectors.avro.options import AvroOptions
from connectors.cli.main import app
from connectors.core.options.declaration import declared_options
from connectors.json.options import JsonOptions
from connectors.protobuf.options import ProtobufOptions
from connectors.registry.glue.options import GlueOptions
from connectors.registry.options import RegistryOptions
from connectors.registry.subjects import SubjectOptions
from tests.support import docs_facts
from tests.support.docs_facts import OPTIONS, ROOT, Page, pages, public_names, violations
from tests.support.documents import blocks
from tools.reference_commands import Command, commands
from tools.reference_python import PUBLIC_MODULES, TESTING_MODULES

REFERENCE = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference").glob("*.md")}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.path))
def test_a_page_names_nothing_that_does_not_exist(page: Page) -> None:
    assert not violations(page)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\nx = (\n```", "is no Python"),
        ("```python\nfrom connectors import start\n```", "connectors promises no start"),
        ("```python\nfrom connectors.spool.ledger.ledger import Ledger\n```", "imported and not public"),
        ("```python\nfrom pyspark.sql import Sparkling\n```", "pyspark.sql has no Sparkling"),
        ('```python\na.readStream.format("pubsub").option("spool", "/x").load()\n```', "no option spool of"),
        ('```python\na.writeStream.format("kinesis").option("consumerMode", "efo")\n```', "no option consumerMode"),
        ('```python\na.read.format("kafka_py").options(startingOffset="latest")\n```', "no option startingOffset"),
        ("```sh\nconnectors spool mend /data\n```", "no such command"),
        ("```sh\nconnectors spool verify \\\n  /data --fast\n```", "no flag --fast"),
        ("Say `connectors docter`.", "no such command"),
        ("Say `connectors doctor --format pubsub -o spool=/x`.", "no option spool"),
        ("`./dev deploy`", "no such verb"),
        ("`./dev chaos weather`", "no file for it"),
        ("`./dev bench --print`", "no flag --print"),
        ("`python -m connectors.testing.pubsubs`", "no such module"),
        ("[see](reference/nothing.md)", "which is not there"),
        ("# One\n[see](#two)", "no such heading"),
        ("# One\n[see][two]\n\n[two]: #two", "no such heading"),
        ("![a plot](plot.svg)", "which is not there"),
        ("[see](reference/\nnothing.md)", "a link without its target"),
        ("[see][nothing]", "a link without its target"),
        ("`map` and map<key:string,value:binary>", "key:string,value:binary became a link"),
        ("array[key] is a link.\n\n[key]: https://example.org", "[key]: makes links"),
        ("Give --options <file>.", "<file> is a tag"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | 4 |", "docs/page.md:5: a row that is in no table"),
        ("| a | b |\n|---|\n| 1 | 2 |", "docs/page.md:1: a row that is in no table"),
        ("| a | b |\n|---|---|\n| `1|2` | 3 |", "docs/page.md:3: a row of 3 cells in a table of 2 columns"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\nText.", "docs/page.md:4: a row of 1 cells"),
        ("`docs/nothing.md`", "no file docs/nothing.md"),
        ("`test_nothing_at_all.py`", "no test"),
        ("`connectors.spool.statistics`", "no name"),
        ("`SPOOL_ON_FIRE`", "no error"),
        ("`spoolLokation=/x`", "no option, column or parameter spoolLokation"),
        ("`publishTimeStamp`", "no option, column or parameter publishTimeStamp"),
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, found: str) -> None:
    assert [line for line in violations(Page(Path("docs/page.md"), text)) if found in line]


@pytest.mark.parametrize(
    "text",
    [
        '```python\na.readStream.format("pubsub").option("SpoolLocation".lower(), "/x")\n```',
        '```python\na.writeStream.format("parquet").option("compression", "zstd")\n```',
        '```python\na.readStream.format("kafka_py").option("kafka.security.protocol", "SSL")\n```',
        '`connectors spool`, `connectors spool verify "$SPOOL" --json` and `./dev --lowest test`',
        "[see](#two-and-more) [there](how-to/doctor.md#what-it-checks)\n\n## Two, and `more`!",
        "| a | b |\n|---|---|\n| `map<a:b>`\\|2 | <https://example.org> |\n\n[c](https://a.b) array[1][2]\n<!-- x -->",
        "`connectors.spool.stats(...)`, `SPOOL_OTHER`, `availableNowQuiet=1s`, `foreachBatch`, `docs/how-to/*.md`",
    ],
)
def test_a_name_that_exists_is_passed(text: str) -> None:
    assert not violations(Page(Path("docs/page.md"), text))


def unknown_blocks(page: Page, tree: Path = ROOT) -> list[str]:
    """Blocks of code that no test runs and that do not say why, and tests that a page names and that are not there."""
    found = []
    for number, one in enumerate(blocks(page.text)):
        where = f"{page.path}, block {number}: {one.text[:40]!r}"
        if one.run_by:
            file, _, name = one.run_by.partition("::")
            test = (tree / file).read_text(encoding="utf-8") if (tree / file).is_file() else ""
            if f"def {name}(" not in test:
                found.append(f"{where}: there is no test {one.run_by}")
            elif page.path.name not in test:
                found.append(f"{where}: {file} does not read the page")
        elif one.is_code and not one.not_run and one.language not in {"python", "sql"}:
            found.append(f"{where}: neither run by a test nor marked with why not")
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.path))
def test_every_block_of_code_is_run_or_says_why_not(page: Page) -> None:
    """Those in Python and SQL without a mark are run by `test_the_blocks_of_a_page_run`."""
    assert unknown_blocks(page) == []
    marks = re.findall(r"^ *<!-- (?:not run|run by)\b.*", page.text, re.MULTILINE)
    assert len(marks) == sum(bool(one.run_by or one.not_run) for one in blocks(page.text)) or "<!-- blocks" in page.text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```sh\nls\n```", "neither run"),
        ("<!-- run: -->\n```yaml\na: 1\n```", "neither run"),
        ("<!-- not run: it installs -->\n\nText.\n\n```sh\nls\n```", "neither run"),
        ("<!-- run by tests/unit/repository/test_docs.py::test_nothing -->\n```sh\nls\n```", "there is no test"),
        ("<!-- run by tests/unit/nothing.py::test_a -->\n```python\nx = 1\n```", "there is no test"),
        ("<!-- run by tests/unit/cli/test_spool.py::test_ -->\n```python\nx = 1\n```", "there is no test"),
    ],
)
def test_a_block_that_is_neither_run_nor_marked_is_found(text: str, found: str) -> None:
    [line] = unknown_blocks(Page(Path("docs/page.md"), text))
    assert found in line


def test_a_test_that_does_not_read_the_page_does_not_run_its_blocks() -> None:
    text = "<!-- run by tests/unit/cli/test_protos.py::test_an_error_has_file_line_and_column -->\n```sh\nls\n```"
    assert "does not read the page" in unknown_blocks(Page(Path("docs/page-of-none.md"), text))[0]


@pytest.mark.parametrize(
    "text",
    [
        "```text\noutput\n```",
        "```python\nx = 1\n```",
        "<!-- not run: it installs -->\n```sh\npip install x\n```",
        "1. So:\n   <!-- not run: it installs -->\n   ```sh\n   pip install x\n   ```",
        "<!-- blocks not run: signatures -->\n\n```sh\nf(a: int)\n```",
    ],
)
def test_a_block_that_is_run_or_marked_is_passed(text: str) -> None:
    assert not unknown_blocks(Page(Path("docs/page.md"), text))


def test_every_batch_write_that_a_page_shows_says_append_without_which_spark_refuses_it() -> None:
    writes = [
        write
        for page in pages()
        for write in re.findall(r"\.write\.format\(\"(?:kafka_py|kinesis|pubsub)[^`]*?save\(\)", page.text)
    ]
    assert len(writes) >= 4
    assert [write for write in writes if '.mode("append")' not in write] == []


def test_every_page_is_linked_from_the_front_page_once() -> None:
    """The links of its sections are the menu of the site; the cards above these lead to some of them."""
    docs = ROOT / "docs"
    sections = (docs / "index.md").read_text(encoding="utf-8").partition("\n## ")[2]
    linked = re.findall(r"\]\(([^)#:]+\.md)\)", sections)
    found = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"index.md"}
    assert sorted(linked) == sorted(found)


def test_how_it_works_names_modules_and_functions_that_exist() -> None:
    text = (ROOT / "docs/explanation/how-it-works.md").read_text(encoding="utf-8")
    drawn = "\n".join(re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    paths = re.findall(r"\b(?:core|spool|kafka|kinesis|pubsub)(?:/\w+)+", drawn)
    package = Path(connectors.__file__).parent
    missing = {path for path in paths if not (package / path).is_dir() and not (package / f"{path}.py").is_file()}
    rows = re.findall(r"\| `(connectors\.[\w.]+)` \| `([\w.]+)` \|", text)
    missing |= {f"{module}: {name}" for module, name in rows if not docs_facts.resolves(f"{module}.{name}")}
    assert len(rows) >= 20
    assert not missing


def test_every_package_that_promises_names_is_public() -> None:
    """Packages export by `__init__`; those of connectors and of the spool's parts promise nothing there."""
    packages = [each.name for each in pkgutil.walk_packages(connectors.__path__, "connectors.") if each.ispkg]
    exporting = {name for name in packages if getattr(importlib.import_module(name), "__all__", ())}
    assert exporting - {"connectors.spool.store"} <= {*PUBLIC_MODULES, *TESTING_MODULES}


def test_a_server_of_connectors_testing_is_public_or_a_part_of_one() -> None:
    here = Path(connectors.__file__).parent / "testing"
    names = {f"connectors.testing.{path.stem}" for path in here.glob("[!_]*.py")}
    text = "\n".join(path.read_text(encoding="utf-8") for path in Path(connectors.__file__).parent.rglob("*.py"))
    imported = set(re.findall(r"^\s*from (connectors\.testing\.\w+) import", text, re.MULTILINE))
    assert names - set(TESTING_MODULES) <= imported


@pytest.mark.parametrize(("module", "name"), public_names())
def test_a_public_name_has_a_section_in_the_reference(module: str, name: str) -> None:
    page = REFERENCE["testing.md" if module in TESTING_MODULES else "python.md"]
    (section,) = re.findall(rf"^## `{re.escape(module)}`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    (text,) = re.findall(rf"^### `{re.escape(name)}`\n(.*?)(?=^### |\Z)", section, re.MULTILINE | re.DOTALL)
    assert text.strip()


def test_every_option_of_every_format_has_a_section_in_the_reference() -> None:
    pages_of = {"kafka_py": "kafka.md"}
    missing = [
        (format_name, verb, option.name)
        for (format_name, verb), kind in OPTIONS.items()
        for option in declared_options(kind).values()
        if f"\n### `{option.name}`\n" not in REFERENCE[pages_of.get(format_name, f"{format_name}.md")]
    ]
    missing += [
        ("protobuf", kind.__name__, option.name)
        for kind in (ProtobufOptions, RegistryOptions, GlueOptions)
        for option in declared_options(kind).values()
        if f"\n### `{option.name}`\n" not in REFERENCE["protobuf.md"]
    ]
    missing += [
        ("avro", kind.__name__, option.name)
        for kind in (AvroOptions, SubjectOptions)
        for option in declared_options(kind).values()
        if f"\n### `{option.name}`\n" not in REFERENCE["avro.md"]
    ]
    missing += [
        ("json", "JsonOptions", option.name)
        for option in declared_options(JsonOptions).values()
        if f"\n### `{option.name}`\n" not in REFERENCE["json.md"]
    ]
    assert not missing


def test_every_class_of_options_is_known_to_these_tests() -> None:
    known = {
        *OPTIONS.values(),
        AvroOptions,
        SubjectOptions,
        JsonOptions,
        ProtobufOptions,
        RegistryOptions,
        GlueOptions,
    }
    for each in pkgutil.walk_packages(connectors.__path__, "connectors."):
        if each.name.endswith("options") and not each.name.startswith("connectors.core"):
            module = importlib.import_module(each.name)
            for kind in vars(module).values():
                if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") and declared_options(kind):
                    assert any(issubclass(one, kind) for one in known), kind


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.words)
def test_a_command_has_a_section_with_what_its_help_shows(command: Command) -> None:
    shown = CliRunner().invoke(app, [*command.words.split()[1:], "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
    assert shown.exit_code == 0
    page = REFERENCE["command-line.md"]
    (section,) = re.findall(rf"^## `{command.words}`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", shown.output)) - {"--help"}
    assert {flag for flag in flags if f"`{flag}" not in section} == set()
    assert {flag for flag in re.findall(r"`(--[\w-]+)", section) if flag not in shown.output} == set()


def test_the_commands_are_those_that_the_help_lists() -> None:
    groups = {" ".join(command.words.split()[1:-1]) for command in commands()}
    listed = set()
    for group in groups:
        text = CliRunner().invoke(app, [*group.split(), "--help"], env={"COLUMNS": "300", "TERM": "dumb"}).output
        names = re.findall(r"^│ (\w[\w-]*) ", text, re.MULTILINE)
        listed |= {" ".join(["connectors", *group.split(), name]) for name in names}
    assert {name for name in listed if name.split()[-1] not in groups} == {command.words for command in commands()}


def test_every_verb_of_dev_that_the_usage_lists_is_one() -> None:
    script = (ROOT / "dev").read_text(encoding="utf-8")
    usage, _, code = script.partition("environment:")
    verbs = set(re.findall(r"^  ([a-z]+)(?: |$)", usage.partition("usage:")[2], re.MULTILINE))
    cases = set(re.findall(r"^    ([a-z]+)\)", code[code.index("case $verb in") :], re.MULTILINE))
    assert verbs == cases
    assert docs_facts.pages()


def test_no_block_writes_a_table_that_spark_from_pip_forgets() -> None:
    """After a restart `toTable` ends by LOCATION_ALREADY_EXISTS there: its catalog is in memory."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    code = [one for path in paths for one in blocks(path.read_text(encoding="utf-8")) if one.language == "python"]
    assert code
    assert not [one.text for one in code if re.search(r"\.(toTable|saveAsTable)\(", one.text)]
