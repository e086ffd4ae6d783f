"""The documentation and the code name the same things: nothing public without a page, nothing on a page that is not."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import connectors
from connectors.cli.main import app
from connectors.core.options.declaration import declared_options
from tests.house_rules import module_name
from tests.support import docs_facts
from tests.support.docs_facts import ROOT, Page, pages, violations
from tests.support.documents import blocks
from tools.reference_commands import commands
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
        ('```python\na.readStream.format("pubsub").option("spool", "/x").load()\n```', "no option spool of"),
        ("```sh\nconnectors spool mend /data\n```", "no such command"),
        ("```sh\nconnectors spool verify \\\n  /data --fast\n```", "no flag --fast"),
        ("`./dev deploy`", "no such verb"),
        ("`python -m connectors.testing.pubsubs`", "no such module"),
        ("[see](reference/nothing.md)", "which is not there"),
        ("# One\n[see](#two)", "no such heading"),
        ("[see][nothing]", "a link without its target"),
        ("array[key] is a link.\n\n[key]: https://example.org", "[key]: makes links"),
        ("Give --options <file>.", "<file> is a tag"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | 4 |", "docs/page.md:5: a row that is in no table"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\nText.", "docs/page.md:4: a row of 1 cells"),
        ("`docs/nothing.md`", "no file docs/nothing.md"),
        ("`test_nothing_at_all.py`", "no test"),
        ("`connectors.spool.statistics`", "no name"),
        ("`SPOOL_ON_FIRE`", "no error"),
        ("`spoolLokation=/x`", "no option, column or parameter spoolLokation"),
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
        ("<!-- run by tests/unit/repository/test_docs.py::test_nothing -->\n```sh\nls\n```", "there is no test"),
    ],
)
def test_a_block_that_is_neither_run_nor_marked_is_found(text: str, found: str) -> None:
    [line] = unknown_blocks(Page(Path("docs/page.md"), text))
    assert found in line


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


def test_every_option_of_every_class_of_options_has_a_section_on_the_page_of_its_package() -> None:
    """Packages without a page, as registry and spool, have their options on pages of others."""
    root = ROOT / "connectors"
    texts = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py") if "testing" not in path.parts}
    kinds = {
        kind
        for path, text in texts.items()
        if "connectors.core.options.declaration import" in text
        for kind in vars(importlib.import_module(module_name(ROOT, path))).values()
        if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__")
    }
    options = {(kind.__module__.split(".")[1], one.name) for kind in kinds for one in declared_options(kind).values()}
    assert {package for package, _ in options} >= {"avro", "json", "kafka", "kinesis", "protobuf", "pubsub", "registry"}
    everywhere = "\n".join(REFERENCE.values())
    missing = [
        (package, name)
        for package, name in options
        if f"\n### `{name}`\n" not in REFERENCE.get(f"{package}.md", everywhere)
    ]
    assert missing == []


def test_the_commands_are_those_that_the_help_lists() -> None:
    groups = {" ".join(command.words.split()[1:-1]) for command in commands()}
    listed = set()
    for group in groups:
        text = CliRunner().invoke(app, [*group.split(), "--help"], env={"COLUMNS": "300", "TERM": "dumb"}).output
        names = re.findall(r"^│ (\w[\w-]*) ", text, re.MULTILINE)
        listed |= {" ".join(["connectors", *group.split(), name]) for name in names}
    assert {name for name in listed if name.split()[-1] not in groups} == {command.words for command in commands()}


def test_no_block_writes_a_table_that_spark_from_pip_forgets() -> None:
    """After a restart `toTable` ends by LOCATION_ALREADY_EXISTS there: its catalog is in memory."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    code = [one for path in paths for one in blocks(path.read_text(encoding="utf-8")) if one.language == "python"]
    assert code
    assert not [one.text for one in code if re.search(r"\.(toTable|saveAsTable)\(", one.text)]
