"""The house rules as functions over a tree: each returns its violations as lines of text.

Most read the syntax trees of a folder that holds `connectors/`; the last three import modules of that folder in a
fresh interpreter and check what was loaded with them.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools import english

SDKS = ("google.cloud", "google.auth", "google.oauth2", "google.api_core", "google.pubsub_v1", "google.pubsub")
SDKS += ("grpc", "grpc_status", "boto3", "botocore", "confluent_kafka")
# Packages that use an SDK, besides the package `client` of each connector.
SDK_PACKAGES = {("core", "aws", "client"), ("registry", "glue", "client")}
COMMAND_LINE = ("typer", "rich")
NOT_ON_EXECUTORS = (*COMMAND_LINE, "pydantic", "prometheus_client")
# Packages that are no connectors, and the packages of the pack that each may import (None: all).
LAYERS: dict[str, set[str] | None] = {
    "core": {"core"},
    "spool": {"core", "spool"},
    "observe": {"core", "spool", "observe"},
    "registry": {"core", "registry"},
    "avro": {"core", "registry", "avro"},
    "json": {"core", "registry", "json"},
    "protobuf": {"core", "registry", "protobuf"},
    "mixed": {"core", "registry", "avro", "json", "protobuf", "mixed"},
    "testing": None,
    "cli": None,
}
# The parts of a connector: the modules and folders at its top level, from the highest layer to the lowest. A part may
# import its own modules and those of lower layers; parts of one layer do not import each other.
CONNECTOR_PARTS = (
    ("datasource", "doctor"),
    ("fan_out",),
    ("source", "sink"),
    ("native",),
    ("client",),
    ("options",),
    ("lag",),
    ("shards", "aggregates"),
    ("schema",),
    ("offsets",),
)
# Only librdkafka knows its settings; asked at once, it lets one error name all that are refused.
EXCEPTED_ARROWS = {("connectors/kafka/options/client.py", "connectors.kafka.native.library")}
SPOOL_PARTS = tuple(
    (part,)
    for part in (
        "executors",
        "source",
        "admin",
        "stream",
        "fetching",
        "ledger",
        "segments",
        "options",
        "store",
        "errors",
    )
)
NO_NAMES = {"each", "found", "given", "kept", "known"}
FOLDER_ENTRIES = 12
ROOT_ENTRIES = 15  # connectors/ itself: its entries are the names that users import, and the rooms that these share
MODULE_LINES = 400
FUNCTION_LINES = 50


@dataclass(frozen=True)
class Import:
    """An imported module or name, in dotted form, and its line; a lazy import stands inside a function."""

    name: str
    line: int
    lazy: bool


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def sources(tree: Path, *folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((tree / folder).rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_name(tree: Path, path: Path) -> str:
    parts = path.relative_to(tree).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_path(tree: Path, name: str) -> Path | None:
    """Return the file of a module of this tree; None if the name is not a module (a function, say)."""
    stem = tree.joinpath(*name.split("."))
    candidates = (stem.with_suffix(".py"), stem / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def imported_names(node: ast.AST, package: str) -> list[str]:
    """Return what a node imports: for `from a import b` both `a` and `a.b`, since b may be a module."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            return [base, *(f"{base}.{alias.name}" for alias in node.names)]
        case ast.Call(func=ast.Name(id="import_module" | "__import__"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
    return []


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module."""
    return tuple(ast.walk(parse(path)))


@cache
def imports(tree: Path, path: Path) -> list[Import]:
    """Return all imports of a module, including those inside functions and by `importlib.import_module("...")`."""
    name = module_name(tree, path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = []

    def visit(node: ast.AST, lazy: bool) -> None:
        found.extend(Import(imported, node.lineno, lazy) for imported in imported_names(node, package))
        inner = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(parse(path), lazy=False)
    return found


def connectors_of(tree: Path) -> list[str]:
    """Return the packages under `connectors/` that are connectors."""
    folders = (path.parent.name for path in (tree / "connectors").glob("*/__init__.py"))
    return sorted(folder for folder in folders if folder not in LAYERS)


def layers(tree: Path) -> list[str]:
    """Core imports only core, the spool core and spool, a connector these and itself; never another connector."""
    connectors = connectors_of(tree)
    packages = {*LAYERS, *connectors}
    bad = []
    for path in sources(tree, "connectors"):
        own = path.relative_to(tree).parts[1]
        allowed = {"core", "spool", own} if own in connectors else LAYERS.get(own)
        if allowed is None:
            continue
        for imported in imports(tree, path):
            first, _, rest = imported.name.partition(".")
            package = rest.partition(".")[0]
            if first == "connectors" and package in packages and package not in allowed:
                bad.append(f"{path.relative_to(tree)}:{imported.line}: {own} imports {imported.name}")
    return bad


def _height(parts: tuple[tuple[str, ...], ...], part: str) -> int | None:
    return next((len(parts) - number for number, names in enumerate(parts) if part in names), None)


def arrows(tree: Path) -> list[str]:
    """Imports between the parts of a connector, and of the spool, point one way; source and sink stay apart."""
    bad = []
    for package in ("spool", *connectors_of(tree)):
        parts = SPOOL_PARTS if package == "spool" else CONNECTOR_PARTS
        for path in sources(tree, f"connectors/{package}"):
            own = path.relative_to(tree / "connectors" / package).with_suffix("").parts[0]
            for imported in imports(tree, path):
                first, second, part, *_ = *imported.name.split("."), "", "", ""
                if (first, second) != ("connectors", package) or part == own:
                    continue
                mine, other = _height(parts, own), _height(parts, part)
                inside = str(path.relative_to(tree))
                excepted = any(
                    inside == file and is_within(imported.name, (module,)) for file, module in EXCEPTED_ARROWS
                )
                if mine is not None and other is not None and other >= mine and not excepted:
                    bad.append(f"{inside}:{imported.line}: {own} imports {imported.name}")
    return bad


def _import_graph(tree: Path) -> dict[str, set[str]]:
    """Return the modules of the pack, and the others that each imports, also inside functions and for types only."""
    paths = {module_name(tree, path): path for path in sources(tree, "connectors")}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        found = {imported.name for imported in imports(tree, path)} & set(paths)
        # `from package import module` names both; the package itself counts only where no module of it is named.
        graph[name] = {each for each in found if not any(other.startswith(f"{each}.") for other in found)} - {name}
    return graph


def no_circles(tree: Path) -> list[str]:
    """No module imports itself through others, not even inside functions or for types."""
    graph, done, bad = _import_graph(tree), set[str](), []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            bad.append(" -> ".join((*path[path.index(name) :], name)))
        elif name not in done:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    return bad


def small_folders(tree: Path) -> list[str]:
    """A folder of the pack has at most 12 entries, its root 15, besides ``__init__.py`` and the like."""
    left_out = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}
    folders = sorted({path.parent for path in sources(tree, "connectors")})
    counts = {folder: sum(entry.name not in left_out for entry in folder.iterdir()) for folder in folders}
    return [
        f"{folder.relative_to(tree)}: {count} entries"
        for folder, count in counts.items()
        if count > (ROOT_ENTRIES if folder == tree / "connectors" else FOLDER_ENTRIES)
    ]


@cache
def code_lines(path: Path) -> set[int]:
    """Return the numbers of the lines that hold code: no blank lines, docstrings or comments."""
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type not in no_code:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in nodes_of(path):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def short_modules(tree: Path) -> list[str]:
    """A module of the pack has at most 400 lines of code."""
    lengths = {path: len(code_lines(path)) for path in sources(tree, "connectors")}
    return [f"{path.relative_to(tree)}: {n} lines of code" for path, n in lengths.items() if n > MODULE_LINES]


def short_functions(tree: Path) -> list[str]:
    """A function of the pack has at most 50 lines of code."""
    bad = []
    for path in sources(tree, "connectors"):
        lines = code_lines(path)
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = len(lines.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
                if length > FUNCTION_LINES:
                    bad.append(f"{path.relative_to(tree)}:{node.lineno}: {node.name} has {length} lines of code")
    return bad


def sdks_only_in_client(tree: Path) -> list[str]:
    """A vendor's SDK is imported by a connector's `client`, some others and `connectors/testing`, nowhere else."""
    bad = []
    for path in sources(tree, "connectors"):
        inside = path.relative_to(tree).parts
        of_connector = inside[1] in connectors_of(tree) and inside[2] == "client"
        if inside[1] == "testing" or of_connector or inside[1:4] in SDK_PACKAGES:
            continue
        used = [imported for imported in imports(tree, path) if is_within(imported.name, SDKS)]
        bad += [f"{path.relative_to(tree)}:{imported.line}: imports {imported.name}" for imported in used]
    return bad


def command_line_only_in_cli(tree: Path) -> list[str]:
    """Typer and rich are imported by `connectors.cli` only, prometheus by `connectors.observe` only."""
    bad = []
    for path in sources(tree, "connectors"):
        inside = path.relative_to(tree).parts
        elsewhere = COMMAND_LINE if inside[1] != "cli" else ()
        elsewhere += ("prometheus_client",) if inside[1] != "observe" else ()
        used = [imported for imported in imports(tree, path) if is_within(imported.name, elsewhere)]
        bad += [f"{path.relative_to(tree)}:{imported.line}: imports {imported.name}" for imported in used]
    return bad


def _catches_all(kind: ast.expr | None) -> bool:
    if isinstance(kind, ast.Tuple):
        return any(_catches_all(each) for each in kind.elts)
    return kind is None or (isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"})


def _does_nothing(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass | ast.Continue)


def nothing_swallowed(tree: Path) -> list[str]:
    """No handler catches every exception and does nothing; neither does `suppress(Exception)`."""
    bad = []
    for path in sources(tree, "connectors", "tests", "bench", "tools"):
        for node in nodes_of(path):
            match node:
                case ast.ExceptHandler() if _catches_all(node.type) and all(map(_does_nothing, node.body)):
                    bad.append(f"{path.relative_to(tree)}:{node.lineno}: swallows every exception")
                case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress")) if any(
                    map(_catches_all, node.args)
                ):
                    bad.append(f"{path.relative_to(tree)}:{node.lineno}: suppresses every exception")
    return bad


def _is_sys_modules(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "modules" and getattr(node.value, "id", "") == "sys"


def _is_mock(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="MagicMock") | ast.Attribute(attr="MagicMock"):
            return True
        case ast.Subscript(value=table, ctx=ast.Store() | ast.Del()):
            return _is_sys_modules(table)
        case ast.Call(func=ast.Attribute(attr="setitem" | "delitem"), args=[table, *_]):
            return _is_sys_modules(table)
    return any(is_within(name, ("unittest.mock", "mock")) for name in imported_names(node, ""))


def no_mocks(tree: Path) -> list[str]:
    """Real servers instead of mocks: no unittest.mock, no change of `sys.modules`."""
    bad = []
    for path in sources(tree, "connectors", "tests", "bench"):
        nodes = [node for node in nodes_of(path) if _is_mock(node)]
        bad += [f"{path.relative_to(tree)}:{node.lineno}: mocks" for node in nodes]
    return bad


# Patches of private names that tests may make, by file and name. No public name does the same to what is not ours.
EXCEPTED_PATCHES = {
    (
        "tests/integration/kafka/sink/test_exactly_once.py",
        "_partitionId",
    ): "of Spark's TaskContext, which its worker fills",
    ("tests/integration/kafka/sink/test_exactly_once.py", "_localProperties"): "of Spark's TaskContext, as above",
    ("tests/spark/test_kafka.py", "_gateway"): "of PySpark, which keeps the gateway of a JVM that has ended",
    ("tests/spark/test_kafka.py", "_jvm"): "of PySpark, as above",
    ("tests/unit/observe/test_failure.py", "_stackTrace"): "of PySpark's exceptions, which a JVM fills",
    (
        "tests/support/fetch_targets.py",
        "any name of a module",
    ): "limits of a process that a fetcher's plan starts, which gives it no others",
}


def _private(name: str) -> str:
    """Return the private part of a dotted name, or nothing."""
    return next((part for part in name.split(".") if part.startswith("_") and not part.endswith("__")), "")


def _is_own(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Name) and owner.id in {"self", "cls"}


def _patched(node: ast.AST) -> str:
    """Return the private name of another object, or of a module, that a piece of code sets or deletes."""
    match node:
        case (
            ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del())
            | ast.Subscript(value=ast.Attribute(value=owner, attr=name), ctx=ast.Store() | ast.Del())
        ) if not _is_own(owner):
            return _private(name)
        case ast.Call(func=ast.Attribute(attr="setitem" | "delitem"), args=[ast.Attribute(attr=name), *_]):
            return _private(name)
        case ast.Call(func=ast.Attribute(attr="__setattr__" | "__delattr__" as name)):
            return name
        case ast.Call(func=ast.Attribute(attr="setattr" | "delattr") | ast.Name(id="setattr" | "delattr"), args=given):
            texts = [each.value for each in given[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            computed = any(isinstance(each, ast.Subscript) and _is_sys_modules(each.value) for each in given[:1])
            return next(filter(None, map(_private, texts)), "any name of a module" if computed else "")
    return ""


def no_private_patches(tree: Path) -> list[str]:
    """Tests set no private name: what they change is a parameter, or something that a server does."""
    bad = []
    for path in sources(tree, "tests"):
        file = str(path.relative_to(tree))
        patched = [(node, name) for node in nodes_of(path) if (name := _patched(node))]
        bad += [
            f"{file}:{node.lineno}: patches {name}" for node, name in patched if (file, name) not in EXCEPTED_PATCHES
        ]
    return bad


INTERPRETER_HELPER = "connectors/core/processes/interpreter.py"
_STARTS_WITHOUT_ARGUMENTS = re.compile(
    r"(?:os\.(?:system|popen|fork|forkpty|exec[lv]\w*|spawn\w+|posix_spawnp?)|pty\.(?:fork|spawn)|runpy\.run_path"
    r"|(?:multiprocessing|context)\.(?:Process|Pool|get_context|Manager)|ProcessPoolExecutor"
    r"|asyncio\.create_subprocess_\w+)"
)
# The launcher becomes the program that its caller names.
EXCEPTED_STARTS = {
    ("connectors/testing/process.py", "os.execv"),
    ("tests/support/spark_protocol/template.py", "os.fork"),  # of a process that the helper's command started
}


def _is_interpreter(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="executable") | ast.Name(id="executable"):
            return True
        case ast.Constant(value=str(text)):
            return re.fullmatch(r"(?:.*/)?python[\d.]*", text) is not None
    return False


def _has_python_flag(command: list[ast.expr]) -> bool:
    """Whether a command has -m or -c as Python takes them: only other flags are before it (not as `go version -m`)."""
    for word in command[1:]:
        value = getattr(word, "value", None)
        if value in {"-m", "-c"}:
            return True
        if isinstance(value, str) and not value.startswith("-"):
            return False
    return False


def _starts_python(node: ast.AST, file: str) -> bool:
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return any(map(_is_interpreter, elements)) or _has_python_flag(elements)
        case ast.Call(keywords=keywords) if any(
            word.arg == "shell" and getattr(word.value, "value", True) for word in keywords
        ):
            return True
        case ast.Call(func=function):
            name = ast.unparse(function)
            if _STARTS_WITHOUT_ARGUMENTS.fullmatch(name):
                return (file, name) not in EXCEPTED_STARTS
            return name.startswith("subprocess.") and any(map(_is_interpreter, node.args))
    return False


def python_by_helper(tree: Path) -> list[str]:
    """Only the helper builds a command that starts Python; no shell and no fork, which would pass it by."""
    bad = []
    for path in sources(tree, "connectors"):
        file = str(path.relative_to(tree))
        if file != INTERPRETER_HELPER:
            starts = [node for node in nodes_of(path) if _starts_python(node, file)]
            bad += [f"{file}:{node.lineno}: starts Python without {INTERPRETER_HELPER}" for node in starts]
    return bad


SPARK_HELPER = "connectors/core/processes/spark.py"
# What Spark documents: of packages the classes, of modules every name.
SPARK_PACKAGES = {"pyspark", "pyspark.errors", "pyspark.sql", "pyspark.sql.streaming"}
SPARK_MODULES = {f"pyspark.sql.{name}" for name in ("datasource", "functions", "types")}
SPARK_MODULES |= {f"pyspark.sql.streaming.{name}" for name in ("datasource", "listener", "query")}
SPARK_MODULES |= {"pyspark.sql.avro.functions", "pyspark.sql.protobuf.functions"}
_DOCUMENTED = SPARK_PACKAGES | SPARK_MODULES | {"pyspark.sql.avro", "pyspark.sql.protobuf"}
_OF_JVM = re.compile(r"_j[a-z]\w*|_sc|_gateway|_active_spark_context|_stack[tT]race|_accumulatorRegistry")
_UNDOCUMENTED = {"pythonExec", "pythonVer"}  # attributes of a SparkContext, without an underscore
_OF_PYTHON = {"_exit", "_replace", "_asdict", "_fields", "_make"}  # of `os` and of named tuples


def _is_internal_module(name: str) -> bool:
    if not is_within(name, ("pyspark", "py4j")) or name in _DOCUMENTED:
        return False
    parent, _, last = name.rpartition(".")
    if _private(last) or parent not in _DOCUMENTED:
        return True
    return parent in SPARK_PACKAGES and not last[0].isupper() and not last.startswith("__")


def _own_names(path: Path) -> set[str]:
    """Return the names that a module binds: its functions, classes, variables and the attributes of its objects."""
    names = set()
    for node in nodes_of(path):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=owner, attr=name, ctx=ast.Store()) if _is_own(owner):
                names.add(name)
    return names


def _internal_names(node: ast.AST, own: set[str]) -> list[str]:
    def others(name: str) -> bool:
        is_private = bool(_private(name)) and name not in own | _OF_PYTHON
        return is_private or name in _UNDOCUMENTED or _OF_JVM.fullmatch(name) is not None

    match node:
        case ast.Attribute(value=owner, attr=name):
            whole = ast.unparse(node) if isinstance(owner, ast.Name | ast.Attribute) else ""
            if is_within(whole, ("pyspark",)):
                return [whole] if _is_internal_module(whole) else []
            return [name] if others(name) and not _is_own(owner) else []
        case ast.Constant(value=str(text)) if re.fullmatch(r"(?:pyspark|py4j)(?:\.\w+)+", text):
            return [text] if _is_internal_module(text) else []
        case ast.Constant(value=str(text)) if _OF_JVM.fullmatch(text) or text in _UNDOCUMENTED:
            return [text]
        case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr" | "delattr" | "attrgetter"), args=words):
            texts = (getattr(word, "value", None) for word in words[-2:])
            return [text for text in texts if isinstance(text, str) and others(text)]
    return []


def spark_internals(tree: Path, path: Path) -> list[tuple[int, str]]:
    """Return the private and undocumented names of PySpark that a module uses, with their lines."""
    own = _own_names(path)
    found = [(imported.line, imported.name) for imported in imports(tree, path) if _is_internal_module(imported.name)]
    found += [(getattr(node, "lineno", 0), name) for node in nodes_of(path) for name in _internal_names(node, own)]
    return sorted(set(found))


def spark_internals_in_one_module(tree: Path) -> list[str]:
    """Only one module of the pack uses names that PySpark does not document, so that a new Spark is read for one."""
    bad = []
    for path in sources(tree, "connectors", "autoload"):
        file = str(path.relative_to(tree))
        if file != SPARK_HELPER:
            bad += [f"{file}:{line}: uses {name} without {SPARK_HELPER}" for line, name in spark_internals(tree, path)]
    return bad


def text_files(tree: Path) -> Iterator[tuple[Path, str]]:
    """Yield the text files that are, or would be, under version control, with their text."""
    if (tree / ".git").exists():
        command = ("git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        listed = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")
        paths = [tree / name for name in listed if name]
    else:
        paths = [path for path in tree.rglob("*") if not re.search(r"/(\.venv|\.\w+_cache|__pycache__)", str(path))]
    for path in sorted(paths):
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            yield path, content.decode("utf-8", errors="replace")


# Built from pieces, so that this file obeys the rules too.
MACHINE_PATH = re.compile(r"(?<![\w.$}~])/(?:" + "work|ro" + "ot|home|Users" + ")/")
REGISTRY_HOSTS = (r"pypi\." + "org", "python" + "hosted", "npm" + "js", r"crates\." + "io", r"proxy\.golang\." + "org")
REGISTRY_HOSTS += (r"maven\.(?:apache\.)?" + "org", r"deb\.debian\." + "org", "--(?:extra-)?index-" + "url")
REGISTRY = re.compile("|".join(REGISTRY_HOSTS))


def _hits(pattern: re.Pattern[str], tree: Path) -> list[str]:
    return [f"{path.relative_to(tree)}: {hit[0]}" for path, text in text_files(tree) for hit in pattern.finditer(text)]


# Words of earlier drafts that the field does not use: duplicates are dropped, messages are nacked, streams are
# recreated, clients authenticate, problems are fixed.
NOT_OUR_WORDS = re.compile(
    r"struck[ _]out|\bstr(?:ike|ikes|iking)[ _]out|\b(?:made|comes?|begins?|began|starts?|created|opened) anew"
    r"|\bmend(?:s|ed|ing)?\b|\blog-ins?\b|\bg(?:ive|ives|iving|ave|iven)[ _]back\b|\bthe way on\b"
    r"|\bis there once\b|\bupkeep\b|\bwhat was told\b|\ban earlier life\b|\bnot tried\b",
    re.IGNORECASE,
)


def plain_words(tree: Path) -> list[str]:
    """The code, the docs, the README and the changelog use the field's words; a phrase may span two lines."""
    violations: list[str] = []
    for path, text in text_files(tree):
        name = path.relative_to(tree)
        is_ours = name.parts[0] in {"connectors", "docs"} and name.suffix in {".py", ".md", ".txt"}
        if is_ours or str(name) in {"README.md", "CHANGELOG.md", "CONTRIBUTING.md"}:
            one_line = re.sub(r"\s+(?:#\s+)?", " ", text)
            violations += [f"{name}: {hit[0]}" for hit in NOT_OUR_WORDS.finditer(one_line)]
    return violations


def plain_sentences(tree: Path) -> list[str]:
    """Pages, errors, options, docstrings and comments have none of the patterns of `tools/english.py`."""
    return english.violations(tree)


def names_of_things(tree: Path) -> list[str]:
    """No variable, parameter, attribute, function or class of the pack has a name that names no thing."""
    violations: list[str] = []
    for path in sources(tree, "connectors"):
        if "testing" in path.relative_to(tree).parts:
            continue
        for node in nodes_of(path):
            name = getattr(node, "name", getattr(node, "arg", getattr(node, "id", getattr(node, "attr", ""))))
            is_bound = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.arg) or (
                isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
            )
            if is_bound and name.strip("_") in NO_NAMES:
                violations.append(f"{path.relative_to(tree)}:{node.lineno}: {name}")
    return violations


def no_machine_paths(tree: Path) -> list[str]:
    """No file holds a path of one machine."""
    return _hits(MACHINE_PATH, tree)


def no_registry_hosts(tree: Path) -> list[str]:
    """No file names the host of a package registry: each machine has its own."""
    return _hits(REGISTRY, tree)


STATIC_RULES: tuple[Callable[[Path], list[str]], ...] = (
    layers,
    arrows,
    no_circles,
    small_folders,
    short_modules,
    short_functions,
    sdks_only_in_client,
    command_line_only_in_cli,
    nothing_swallowed,
    no_mocks,
    no_private_patches,
    python_by_helper,
    spark_internals_in_one_module,
    plain_words,
    plain_sentences,
    names_of_things,
    no_machine_paths,
    no_registry_hosts,
)


def loaded_by(tree: Path, modules: list[str]) -> set[str]:
    """Return all modules that a fresh interpreter has loaded after it imported these from this tree."""
    code = "import importlib, json, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "print(json.dumps(sorted(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = (sys.executable, "-c", code, *modules)
    done = subprocess.run(command, cwd=tree, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        message = f"import of {modules} failed:\n{done.stderr}"
        raise ImportError(message)
    return set(json.loads(done.stdout))


@cache
def referenced_names(node: ast.AST) -> frozenset[str]:
    """Return every name and attribute that a piece of code mentions."""
    mentions = (getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node))
    return frozenset(mentions) - {""}


def _reached_functions(path: Path, names: set[str]) -> Iterator[ast.AST]:
    """Yield functions and methods with one of these names, and the special methods of classes with one."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names:
            yield node
        if isinstance(node, ast.ClassDef) and node.name in names:
            yield from (each for each in node.body if getattr(each, "name", "").startswith("__"))


def executor_modules(tree: Path, connector: str) -> list[str]:
    """Return the modules of the pack that `read()` and `write()` of a connector load in a Spark worker.

    To unpickle its task, a worker imports the module of readers and writers, with all imports at its top. The imports
    inside `read` and `write` follow, and those of every function whose name these mention, in any module reached so
    far: this may count a function too many, but misses none.
    """
    names = {"read", "write"}
    reached = {name for name in [f"connectors.{connector}.datasource"] if module_path(tree, name)}
    while True:
        before = len(names), len(reached)
        for name in sorted(reached):
            path = module_path(tree, name)
            functions = list(_reached_functions(path, names))
            lines = [range(each.lineno, each.end_lineno + 1) for each in functions]
            for function in functions:
                names |= referenced_names(function)
            for imported in imports(tree, path):
                here = not imported.lazy or any(imported.line in span for span in lines)
                if here and is_within(imported.name, ("connectors",)) and module_path(tree, imported.name):
                    reached.add(imported.name)
        if before == (len(names), len(reached)):
            return sorted(reached)


def sdks_imported_lazily(tree: Path) -> list[str]:
    """Importing the pack, or any module of a connector that Spark imports, loads no SDK."""
    modules = ["connectors"]
    modules += [
        f"connectors.{name}.{part}" for name in connectors_of(tree) for part in ("options.source", "datasource")
    ]
    modules = [name for name in modules if module_path(tree, name)]
    return [f"{modules}: {name}" for name in sorted(loaded_by(tree, modules)) if is_within(name, SDKS)]


def light_on_executors(tree: Path) -> list[str]:
    """What a connector's `read()` and `write()` reach loads no pydantic, typer, rich or prometheus."""
    bad = []
    for connector in connectors_of(tree):
        modules = executor_modules(tree, connector)
        loaded = sorted(loaded_by(tree, modules))
        bad += [f"{connector} by {modules}: {name}" for name in loaded if is_within(name, NOT_ON_EXECUTORS)]
    return bad


def cheap_import(tree: Path) -> list[str]:
    """`import connectors` loads neither Spark nor Arrow."""
    return [name for name in sorted(loaded_by(tree, ["connectors"])) if is_within(name, ("pyspark", "pyarrow"))]
