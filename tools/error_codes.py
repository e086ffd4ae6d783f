"""Every stable code of an error, a warning or a finding, with its texts: read from the syntax trees of `connectors`.

A code stands as a literal where the error is made, or comes there by a parameter, a constant, a table or an f-string.
What leads to a code is followed: names of constants, also imported ones, local variables, the arguments of all calls
of the function around, and the fields of a declared kind such as `SealedKind`. A code that cannot be followed is an
error of `error_codes`, so that none is left out. Pieces of a text that only a run knows are shown as ``<name>``.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from connectors.core import errors as core_errors
from connectors.protobuf.errors import CONDITIONS

__all__ = ["ErrorCode", "Meaning", "error_codes"]

ROOT = Path(__file__).parent.parent
_CODE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+(\.[A-Z0-9_]+)?")
_LOGGED = re.compile(r"\[([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\] (.*)", re.DOTALL)
_PERCENT = re.compile(r"%[-+,.\d]*[sdgfr]")
_DEPTH = 4
_CHOICES = 12
_PROTOBUF_CALLS = {"analysis_error": "ProtobufAnalysisError", "data_error": "ProtobufDataError"}
_FINDINGS = {"failure": "", "warning": "warning"}


@dataclass(frozen=True, order=True)
class Meaning:
    """One way in which a code is met.

    Attributes:
        kind: the class of the error; ``warning`` for a line of the log, ``finding`` for one of a check.
        what: what is wrong.
        action: what to do; may be empty.
        package: of `connectors`, where it is made.
    """

    kind: str
    what: str
    action: str
    package: str


@dataclass(frozen=True)
class ErrorCode:
    """A stable code and all its meanings, in the order of the code."""

    code: str
    meanings: tuple[Meaning, ...]


@dataclass
class _Module:
    """A module: its tree, what surrounds each node, its constants and where its imported names come from.

    The nodes of `parents` are in the order of `ast.walk`.
    """

    name: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """The folder below `connectors`; the module itself where there is none."""
        return self.name.split(".")[1] if "." in self.name else self.name


@dataclass(frozen=True)
class _Place:
    """A node and the scope that gives its names a meaning; `known` is what a caller or a kind has given."""

    module: _Module
    function: ast.FunctionDef | None = None
    node: ast.AST | None = None
    known: Mapping[str, tuple[ast.expr, _Place]] = field(default_factory=dict)


@cache
def error_codes(root: Path = ROOT) -> tuple[ErrorCode, ...]:
    """All codes of the tree below a folder that has `connectors`, sorted.

    Raises:
        ValueError: the code of an error cannot be followed.
    """
    return tuple(_Tree(root).codes())


class _Tree:
    def __init__(self, root: Path) -> None:
        self._modules = {module.name: module for module in _modules(root)}
        self._calls: dict[str, list[tuple[_Module, ast.Call]]] = {}
        self._errors = {
            "AvroAnalysisError",
            "AvroDataError",
            "JsonAnalysisError",
            "JsonDataError",
            "ProtobufAnalysisError",
            "ProtobufDataError",
            *(name for name in core_errors.__all__ if name.endswith("Error")),
        }
        self._declared: list[ast.ClassDef] = []
        for module in self._modules.values():
            for node in module.parents:
                if isinstance(node, ast.Call):
                    self._calls.setdefault(_tail(node.func), []).append((module, node))
                elif isinstance(node, ast.ClassDef) and "code" in _fields(node):
                    self._declared.append(node)

    def codes(self) -> list[ErrorCode]:
        found: dict[str, dict[Meaning, None]] = {}
        for module in self._modules.values():
            for node in module.parents:
                for code, meaning in self._read(module, node):
                    found.setdefault(code, {})[meaning] = None
        return [ErrorCode(code, tuple(meanings)) for code, meanings in sorted(found.items())]

    def _read(self, module: _Module, node: ast.AST) -> Iterator[tuple[str, Meaning]]:
        if isinstance(node, ast.Call) and (made := self._made(node)) is not None:
            yield from self._meanings(module, node, *made)
        around = module.parents.get(node)
        if not isinstance(node, ast.Constant | ast.JoinedStr) or isinstance(around, ast.JoinedStr):
            return
        call = around if isinstance(around, ast.Call) and node in around.args[:1] else None
        name = _tail(call.func) if call else ""
        for text in self._texts(node, self._place(module, node), 0):
            if match := _LOGGED.fullmatch(text):
                arguments = iter([_placeholder(each) for each in call.args[1:]] if call else [])
                what = _PERCENT.sub(lambda _, given=arguments: next(given, "..."), match[2])
                kind = name if name.endswith("Error") else "warning"
                yield match[1], Meaning(kind, _sentence(what), "", module.package)

    def _made(self, call: ast.Call) -> tuple[str, dict[str, ast.expr]] | None:
        """What a call makes, and its code, what and action; None for any other call."""
        name = _tail(call.func)
        if isinstance(call.func, ast.Call) and _tail(call.func.func) == "type" and len(call.args) > 1:
            name = "ConnectorError"
        if name == "error" and call.args and _tail(call.args[0]) == "code":
            name = "ConnectorError"  # of a kind that names its class
        if name in _PROTOBUF_CALLS:
            return _PROTOBUF_CALLS[name], _parts(call, ("code",))
        if name in self._errors:
            return name, _parts(call, ("code", "what", "where", "action"))
        if name in _FINDINGS and isinstance(call.func, ast.Attribute) and _tail(call.func.value) == "Finding":
            return "finding", _parts(call, ("area", "check", "what", "action", "code"))
        if name == "Finding" and call.args and "Severity" in ast.unparse(call.args[0]):
            return "finding", _parts(call, ("severity", "file", "code", "what", "action"))
        return None

    def _meanings(
        self, module: _Module, call: ast.Call, kind: str, parts: dict[str, ast.expr]
    ) -> Iterator[tuple[str, Meaning]]:
        wanted = [parts[name] for name in ("code", "what", "action") if name in parts]
        for place in self._expanded(self._place(module, call), wanted, 0):
            codes = [code for code in self._texts(parts["code"], place, 0) if _CODE.fullmatch(code)]
            if not codes and not _passed_on(parts["code"]):
                raise ValueError(f"{module.name}:{call.lineno}: the code {ast.unparse(parts['code'])} is not followed")
            whats, actions = (
                self._texts(parts[name], place, 0) if name in parts else [""] for name in ("what", "action")
            )
            if ".error" in place.known:
                kind = _tail(place.known[".error"][0])
            for code, what, action in itertools.product(codes, whats, actions):
                text = CONDITIONS[code][0] if kind in _PROTOBUF_CALLS.values() and code in CONDITIONS else what
                yield code, Meaning(kind, _sentence(text), _sentence(action), module.package)

    def _place(self, module: _Module, node: ast.AST) -> _Place:
        around: ast.AST | None = node
        while around is not None and not isinstance(around, ast.FunctionDef):
            around = module.parents.get(around)
        return _Place(module, around, node)

    def _expanded(self, place: _Place, wanted: list[ast.expr], depth: int) -> Iterator[_Place]:
        """The place once for each caller and for each declared kind that the wanted expressions draw on."""
        if together := self._kinds(place, wanted) or _tuples(place, wanted[0]):
            yield from (replace(place, known=known) for known in together)
            return
        parameters = _parameters(place.function) if place.function else []
        drawn = _drawn(place.function, wanted[0]) | {_tail(each) for each in wanted}
        callers = self._callers(place) if depth < _DEPTH and drawn & set(parameters) else []
        if not callers:
            yield place
            return
        for module, call in callers:
            given = _parts(call, tuple(name for name in parameters if name not in {"self", "cls"}))
            asked = [given[name] for name in parameters if name in given and name in drawn]
            outers = self._expanded(self._place(module, call), asked, depth + 1) if asked else [_Place(module)]
            for outer in outers:
                yield replace(place, known={name: (value, outer) for name, value in given.items()})

    def _callers(self, place: _Place) -> list[tuple[_Module, ast.Call]]:
        """The calls of the function around a place, where its own name is meant."""
        if place.function is None:
            return []
        home, name = place.module.name, place.function.name
        here = []
        for module, call in self._calls.get(name, []):
            base = _tail(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            source, imported = module.imported.get(base or name, ("", ""))
            if home in {module.name, f"{source}.{imported}" if base else source}:
                here.append((module, call))
        return here

    def _kinds(self, place: _Place, wanted: list[ast.expr]) -> list[dict[str, tuple[ast.expr, _Place]]]:
        """The fields of every declared kind, if the code is the field `code` of one."""
        if not any(isinstance(one, ast.Attribute) and one.attr == "code" for one in ast.walk(wanted[0])):
            return []
        classes = [each for each in place.module.tree.body if each in self._declared]
        classes += [each for each in self._declared if each.name in place.module.imported]
        known = []
        for one in classes:
            for module, call in self._calls.get(one.name, []):
                given = _parts(call, tuple(_fields(one)))
                outer = self._place(module, call)
                known.append({f".{name}": (value, outer) for name, value in given.items()})
        return known

    def _texts(self, node: ast.expr, place: _Place, depth: int) -> list[str]:
        """The texts that an expression can be; a placeholder where it is not known."""
        found = self._followed(node, place, depth)
        return list(dict.fromkeys(found))[:_CHOICES] if found else [_placeholder(node)]

    def _followed(self, node: ast.expr, place: _Place, depth: int) -> list[str] | None:
        if depth > 2 * _DEPTH:
            return None
        found: list[str] | None = None
        match node:
            case ast.Constant(value=str(text)):
                found = [text]
            case ast.JoinedStr(values=pieces):
                found = _joined([self._texts(each, place, depth + 1) for each in pieces])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                found = _joined([self._texts(each, place, depth + 1) for each in (left, right)])
            case ast.IfExp(body=body, orelse=orelse):
                found = [text for each in (body, orelse) for text in self._texts(each, place, depth + 1)]
            case ast.BoolOp(values=choices) | ast.Dict(values=choices):
                found = [text for each in choices for text in self._followed(each, place, depth + 1) or []]
            case ast.Attribute(attr=attr) if f".{attr}" in place.known:
                found = self._given(f".{attr}", place, depth)
            case ast.Name(id=name):
                found = self._named(name, place, depth)
            case (
                ast.FormattedValue(value=inner)
                | ast.Subscript(value=inner)
                | ast.Call(func=ast.Attribute(value=inner, attr="format" | "rstrip"))
            ):
                found = self._followed(inner, place, depth + 1)
        return found or None

    def _given(self, name: str, place: _Place, depth: int) -> list[str]:
        value, outer = place.known[name]
        return self._texts(value, outer, depth + 1)

    def _named(self, name: str, place: _Place, depth: int) -> list[str] | None:
        if name in place.known:
            return self._given(name, place, depth)
        if place.function is not None:
            local = _current(place, name)
            texts = [text for value in local for text in self._followed(value, place, depth + 1) or []]
            if local or name in _parameters(place.function):
                return texts or None
        module = place.module
        if name in module.imported:
            home, name = module.imported[name]
            module = self._modules.get(home, module)
        constant = module.constants.get(name)
        return self._followed(constant, _Place(module), depth + 1) if constant is not None else None


def _modules(root: Path) -> Iterator[_Module]:
    for path in sorted((root / "connectors").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[1] == "testing":
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        module = _Module(name, ast.parse(path.read_text(encoding="utf-8"), str(path)))
        for node in ast.walk(module.tree):
            module.parents |= dict.fromkeys(ast.iter_child_nodes(node), node)
            if isinstance(node, ast.ImportFrom) and node.module:
                module.imported |= {each.asname or each.name: (node.module, each.name) for each in node.names}
        for statement in module.tree.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)], value=value):
                    module.constants[target] = value
                case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value):
                    module.constants[target] = value
        yield module


def _tail(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _parts(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
    given = dict(zip(names, call.args, strict=False))
    return given | {each.arg: each.value for each in call.keywords if each.arg}


def _parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _fields(kind: ast.ClassDef) -> list[str]:
    """The fields of a dataclass."""
    if "dataclass" not in "".join(map(ast.unparse, kind.decorator_list)):
        return []
    return [
        each.target.id for each in kind.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]


@cache
def _assignments(function: ast.FunctionDef) -> tuple[tuple[ast.AST, list[ast.expr], list[ast.expr]], ...]:
    """The statements of a function that give names a value, also in a tuple, with the targets and the values."""
    found: list[tuple[ast.AST, list[ast.expr], list[ast.expr]]] = []
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                found.append((node, targets, values))
            case ast.Assign(targets=[ast.Name() as target], value=value) | ast.NamedExpr(target=target, value=value):
                found.append((node, [target], [value]))
    return tuple(found)


def _assigned(function: ast.FunctionDef, name: str) -> Iterator[tuple[ast.AST, ast.expr]]:
    """The statements of a function that give a local name a value, and the values."""
    for node, targets, values in _assignments(function):
        yield from ((node, value) for each, value in zip(targets, values, strict=False) if _tail(each) == name)


def _current(place: _Place, name: str) -> list[ast.expr]:
    """What a local name can be at a place: back to the last value that it surely got."""
    if place.function is None or place.node is None:
        return []
    line = getattr(place.node, "lineno", 0)
    given = [each for each in _assigned(place.function, name) if getattr(each[0], "lineno", 0) <= line]
    found = []
    for node, value in sorted(given, key=lambda each: -getattr(each[0], "lineno", 0)):
        found.append(value)
        if _surely_before(place, node):
            break
    return found


def _surely_before(place: _Place, statement: ast.AST) -> bool:
    """Whether a statement stands in a block that the node of a place is in too."""
    block = place.module.parents.get(statement)
    inner = place.node
    while inner is not None and place.module.parents.get(inner) is not block:
        inner = place.module.parents.get(inner)
    return inner is not None and any(
        statement in body and inner in body
        for body in (getattr(block, name, None) for name in ("body", "orelse", "finalbody"))
        if isinstance(body, list)
    )


def _drawn(function: ast.FunctionDef | None, node: ast.expr) -> set[str]:
    """The names that an expression draws on, also through local variables."""
    found: set[str] = set()
    todo = [node]
    while todo:
        for name in {each.id for each in ast.walk(todo.pop()) if isinstance(each, ast.Name)} - found:
            found.add(name)
            todo += [value for _, value in _assigned(function, name)] if function else []
    return found


def _tuples(place: _Place, node: ast.expr) -> list[dict[str, tuple[ast.expr, _Place]]]:
    """What goes together, where a function assigns a code and its texts as a tuple."""
    if place.function is None or not isinstance(node, ast.Name):
        return []
    found = []
    for _, targets, values in _assignments(place.function):
        given = {_tail(target): (value, place) for target, value in zip(targets, values, strict=False)}
        found += [given] if len(targets) > 1 and node.id in given else []
    return found


def _joined(pieces: list[list[str]]) -> list[str]:
    return ["".join(each) for each in itertools.islice(itertools.product(*pieces), _CHOICES)]


def _placeholder(node: ast.expr) -> str:
    name = _tail(node.value if isinstance(node, ast.FormattedValue) else node).strip("_")
    return f"<{name}>" if name else "..."


def _passed_on(node: ast.expr) -> bool:
    """Whether a code is that of another error, which has its own place."""
    return isinstance(node, ast.Attribute) and node.attr == "code"


def _sentence(text: str) -> str:
    """A text in one line; empty where all of it is only known to a run."""
    text = "" if re.fullmatch(r"<\w+>|[. ]*", text) else re.sub(r"\.{4,}", "...", " ".join(text.split()))
    return text if not text or text.endswith((".", ":", "?")) else text + "."
