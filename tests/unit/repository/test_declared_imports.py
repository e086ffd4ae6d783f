"""What the modules of connectors/ import is what their extras declare, and each extra alone is enough to load them."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house_rules import module_name
from tests.support.documents import blocks
from tools.audit import brought

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# A folder of connectors/ needs the extra of its name, and the core where there is none. These differ: the folders that
# connectors share, and the modules that need an optional package and say what is not possible without it.
_FORMATS = {"avro", "json", "protobuf"}
SHARED = {
    "spool": {"spool", "pubsub", "kinesis"},
    "core.functions": _FORMATS,
    "registry": _FORMATS,
    "mixed": _FORMATS,
}
OPTIONAL = {
    "connectors.cli.demo.job": "pubsub",
    "connectors.cli.demo.kafka": "kafka",
    "connectors.cli.demo.kinesis": "kinesis",
    "connectors.cli.demo.pubsub": "pubsub",
    "connectors.cli.demo.run": "pubsub",
    "connectors.executors": "spool",
    "connectors.cli.protos": "protos",
    "connectors.core.aws.client.connection": "glue",
    "connectors.core.processes.protoc_child": "protos",
    "connectors.registry.glue.client.client": "glue",
    "connectors.observe.console": "cli",
    "connectors.observe.prometheus": "observe",
    "connectors.observe.spool_probe": "spool",
    "connectors.protobuf.ptars.declarations": "fast",
    "connectors.pubsub.source.records": "fast",
    "connectors.spool.store.object_client": "objects",
    "connectors.testing.kafka.mock": "kafka",
}
# Brought by whoever runs Spark; only Spark 4.0 needs pandas, which the tests' environment does not have.
OF_SPARK = {"pyspark", "py4j", "pandas"}
FOLDERS = ("cli", "avro", "json", "kafka", "kinesis", "protobuf", "pubsub", "spool", "testing")


def declared(extra: str) -> set[str]:
    """The distributions that an extra names; ``core`` is what comes without one."""
    lines = PROJECT["dependencies"] if extra == "core" else PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def modules() -> dict[str, Path]:
    return {module_name(ROOT, path): path for path in sorted((ROOT / "connectors").rglob("*.py"))}


def extras_of(module: str) -> set[str]:
    """The extras that each have to bring what a module imports."""
    folder = module.split(".")[1] if "." in module else ""
    shared = next((extras for name, extras in SHARED.items() if f"{module}.".startswith(f"connectors.{name}.")), None)
    return shared or ({folder if folder in PROJECT["optional-dependencies"] else "core"} - {"observe"}) or {"core"}


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from run_time_nodes(child)


def imports(path: Path) -> set[str]:
    """As `imported`, of a file, but for the pack itself, Spark and the standard library."""
    own = {"connectors", *OF_SPARK, *sys.stdlib_module_names}
    return {name for name in imported(path.read_text()) if name.partition(".")[0] not in own}


def imported(text: str) -> set[str]:
    """The names that a program imports, at its top or in a function: for ``from a import b`` it is ``a.b``."""
    found: set[str] = set()
    for node in run_time_nodes(ast.parse(text)):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module), level=0):
                found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


FORMATS = {"pubsub": "pubsub", "kinesis": "kinesis", "kafka_py": "kafka"}
INSTALL = re.compile(r"pip install '\.\[([\w,]+)\]'([\w ]*)")
EXAMPLES = [path for path in sorted((ROOT / "examples").iterdir()) if path.suffix in {".py", ".ipynb"}]


def texts_of(path: Path) -> tuple[str, str]:
    """The program of an example, and all its text."""
    if path.suffix == ".py":
        return path.read_text(), path.read_text()
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    return "\n".join(text for kind, text in cells if kind == "code"), "\n".join(text for _, text in cells)


def unmet(program: str, extras: set[str], further: set[str]) -> list[str]:
    """What an example needs that a command does not install: Spark, packages, formats, and what our modules need."""
    installed = {*owners().values()} & further  # the environment of the tests has no Jupyter
    brings = {
        *brought("pyspark-stream-connectors", frozenset(extras)),
        *(n for each in installed for n in brought(each, frozenset())),
    }
    if "all" in extras:
        extras = {*extras, *Requirement(PROJECT["optional-dependencies"]["all"][0]).extras}
    missing = set() if "spark" in extras else {"the extra spark"}
    for name in imported(program):
        first = name.partition(".")[0]
        if first == "connectors":
            module = next((each for each in (name, name.rpartition(".")[0]) if each in modules()), "connectors")
            choices = {OPTIONAL[module]} if module in OPTIONAL else extras_of(module)
            if not choices & {*extras, "core"}:
                missing.add(f"an extra for {module}")
        elif first not in {*sys.stdlib_module_names, *OF_SPARK, "tools"} and distribution_of(name) not in brings:
            missing.add(name)
    used = re.findall(r"format\(\"(\w+)\"\)", program)
    missing |= {f"the extra {FORMATS[each]}" for each in used if each in FORMATS and FORMATS[each] not in extras}
    return sorted(missing)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_install_line_of_an_example_brings_what_it_needs(path: Path) -> None:
    program, text = texts_of(path)
    commands = INSTALL.findall(text)
    assert "pip install" not in text or commands, "it installs from somewhere else than a clone"
    for extras, further in commands:
        assert unmet(program, set(extras.split(",")), {canonicalize_name(each) for each in further.split()}) == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/tutorial/first-stream.md"])
def test_the_install_line_of_a_first_page_brings_spark_and_what_its_steps_need(page: str) -> None:
    text = (ROOT / page).read_text()
    [(extras, _)] = INSTALL.findall(text)
    programs = [one.text for one in blocks(text) if one.language == "python" and "from_protobuf" not in one.text]
    assert [each for program in programs for each in unmet(program, set(extras.split(",")), set())] == []
    if page != "docs/index.md":
        assert {"spark", "cli", "testing"} <= set(extras.split(","))  # for `connectors demo` and its server


@cache
def owners() -> dict[str, str]:
    """By dotted name: the distribution that a module or package is installed by, of all that are installed."""
    found = {}
    for each in distributions():
        name = canonicalize_name(each.name)
        # As text: Distribution.files makes an object of each line, which takes seconds.
        for line in (each.read_text("RECORD") or "").splitlines():
            path = line.partition(",")[0]
            if path.endswith((".py", ".so")):
                folder, _, file = path.rpartition("/")
                stem = file.partition(".")[0]
                found[f"{folder}/{stem}".removesuffix("/__init__").strip("/").replace("/", ".")] = name
    return found


def distribution_of(name: str) -> str:
    """The distribution that has the longest part of an imported name."""
    parts = name.split(".")
    candidates = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((owners()[each] for each in candidates if each in owners()), f"nothing installed has {name}")


def needed(path: Path) -> set[str]:
    return {distribution_of(name) for name in imports(path)}


def undeclared(files: Iterable[tuple[str, Path]]) -> list[str]:
    """What a module imports and an extra that needs the module does not declare."""
    return [
        f"{module} imports {name}, which {extra} does not declare"
        for module, path in files
        for extra in sorted(extras_of(module))
        for name in sorted(
            needed(path)
            - declared("core")
            - declared(extra)
            - (declared(OPTIONAL[module]) if module in OPTIONAL else set())
        )
    ]


def test_every_import_is_of_a_package_that_its_extra_declares() -> None:
    assert "\n".join(undeclared(modules().items())) == ""


def test_every_package_that_an_extra_declares_is_imported_by_one_of_its_modules() -> None:
    used: dict[str, set[str]] = {}
    for module, path in modules().items():
        for extra in extras_of(module) | ({OPTIONAL[module]} if module in OPTIONAL else set()):
            used[extra] = used.get(extra, set()) | needed(path)
    unused = [
        f"{extra} declares {name}"
        for extra in ("core", *PROJECT["optional-dependencies"])
        if extra not in {"all", "pandas", "spark"}
        for name in sorted(declared(extra) - used.get(extra, set()))
    ]
    assert unused == []


@pytest.mark.parametrize(
    ("module", "line", "package"),
    [
        ("connectors.core.planted", "import pydantic", "pydantic"),
        ("connectors.pubsub.planted", "from google.pubsub_v1 import types", "google-cloud-pubsub"),
    ],
)
def test_an_undeclared_import_is_found(tmp_path: Path, module: str, line: str, package: str) -> None:
    path = tmp_path / "planted.py"
    path.write_text(f"{line}\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pytest\n")
    found = undeclared([(module, path)])
    assert found == [
        f"{module} imports {package}, which {extra} does not declare" for extra in sorted(extras_of(module))
    ]


LOAD = """
import importlib, sys
from importlib.abc import MetaPathFinder

class Installed(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Installed())
failed = []
for module in MODULES:
    try:
        importlib.import_module(module)
    except ImportError as error:
        failed.append(f"{module}: {error!r}")
print(*failed, sep="\\n")
"""


@pytest.mark.parametrize("extra", ["", *FOLDERS])
def test_modules_of_an_extra_load_with_what_it_brings(extra: str) -> None:
    """Also what a dependency needs and does not require itself, as google-auth does requests, is brought."""
    installed = {*brought("pyspark-stream-connectors", frozenset({extra, "spark"})), *OF_SPARK}
    refused = {name for name, owner in owners().items() if owner not in installed}
    names = [
        name
        for name in modules()
        if (extra or "core") in extras_of(name) and name not in OPTIONAL and not name.endswith("__main__")
    ]
    program = f"REFUSED = {refused!r}\nMODULES = {names!r}\n{LOAD}"
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == ""
