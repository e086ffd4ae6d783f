"""The reference pages of the Python names that users may rely on: what `__all__` of the public modules promises."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

__all__ = ["PUBLIC_MODULES", "TESTING_MODULES", "described", "python_page", "testing_page"]

PUBLIC_MODULES = (
    "connectors",
    "connectors.avro",
    "connectors.json",
    "connectors.protobuf",
    "connectors.mixed",
    "connectors.bad_records",
    "connectors.observe",
    "connectors.spool",
    "connectors.executors",
    "connectors.kafka.lag",
    "connectors.core.errors",
)
"""What a job imports, in the order of the page. Everything else may change without notice."""

TESTING_MODULES = (
    "connectors.testing.pubsub",
    "connectors.testing.kinesis",
    "connectors.testing.kafka.mock",
    "connectors.testing.schema_registry",
    "connectors.testing.azure_schema_registry",
    "connectors.testing.history",
    "connectors.testing.object_store",
)
"""What a test imports."""

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_SECTION_TITLES = {"Args": "Arguments"}
_ENTRY = re.compile(r"^    (\*{0,2}[\w.]+): (.*)$")
_SHOWN_CHARACTERS = 100


def python_page() -> str:
    """The page of `PUBLIC_MODULES`."""
    return _page(
        "Python names",
        "What a job imports. A name that is not here may change\n"
        "without notice; options of sources and sinks have pages of their own. What a test imports is on\n"
        "[another page](testing.md).",
        PUBLIC_MODULES,
    )


def testing_page() -> str:
    """The page of `TESTING_MODULES`."""
    return _page(
        "Servers for tests",
        "Real servers on loopback, with faults on demand. They come with the extra `testing`;\n"
        "`MockKafka` needs the extra of the source. `python -m connectors.testing NAME --port N` runs a server as a\n"
        "program, which prints its addresses and what to export; `--help` lists the names, `NAME --help` the options\n"
        "of one.",
        TESTING_MODULES,
    )


def _page(title: str, intro: str, modules: tuple[str, ...]) -> str:
    mark = "<!-- blocks not run: signatures, and examples of docstrings, which take names of their caller -->"
    parts = [f"# {title}", mark, "Generated from the code by `./dev docs`. " + intro]
    for name in modules:
        parts += _module(importlib.import_module(name))
    return "\n\n".join(parts) + "\n"


def described(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield a public module, its functions and classes, and the classes' public members, each with its name."""
    yield module.__name__, module
    for own in module.__all__:
        value = getattr(module, own)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield own, value
        if inspect.isclass(value):
            yield from ((f"{own}.{name}", member) for name, member in _members(value))


def _module(module: ModuleType, name: str = "") -> Iterator[str]:
    yield f"## `{name or module.__name__}`"
    yield _markdown(inspect.getdoc(module) or "")
    values = {name: getattr(module, name) for name in module.__all__}
    for own, value in values.items():
        yield from _name(own, value)
    for own, value in values.items():
        if inspect.ismodule(value):
            yield from _module(value, f"{module.__name__}.{own}")


def _name(name: str, value: Any) -> Iterator[str]:
    yield f"### `{name}`"
    if isinstance(value, enum.EnumType):
        yield _markdown(inspect.getdoc(value) or "")
        members: dict[str, Any] = dict(value.__members__)
        yield "\n".join(f"- `{member}`: `{each.value!r}`" for member, each in members.items())
    elif inspect.isclass(value):
        yield from _class(name, value)
    elif inspect.ismodule(value):
        yield "A module; see below."
    elif inspect.isfunction(value):
        yield _code(_signature(name, value))
        yield _markdown(inspect.getdoc(value) or "")
    else:
        yield _code(f"{name} = {_short(value)}")


def _class(name: str, kind: type) -> Iterator[str]:
    if not issubclass(kind, Exception):
        yield _code(_signature(name, kind))
    elif kind.__bases__[0] is not Exception:
        yield f"A `{kind.__bases__[0].__name__}`."
    yield _markdown(inspect.getdoc(kind) or "")
    rows = [f"| `{_call(own, value)}` | {_first_sentence(value)} |" for own, value in _members(kind)]
    if rows:
        yield "\n".join(["| member | |", "|---|---|", *rows])


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, inherited ones too, that say what they do."""
    for name, value in inspect.getmembers(kind):
        if name.startswith("_") or not (inspect.isroutine(value) or isinstance(value, property)):
            continue
        home = inspect.getmodule(value.fget if isinstance(value, property) else value)
        if home is not None and home.__name__.startswith("connectors."):
            yield name, value


def _call(name: str, value: Any) -> str:
    """A method as it is called, its parameters without types; ``|`` of those would end the cell of a table."""
    if isinstance(value, property):
        return name
    parameters = inspect.signature(value).parameters.values()
    untyped = (one.replace(annotation=one.empty) for one in parameters if one.name not in {"self", "cls"})
    return f"{name}({', '.join(_parameter(one).replace(' = ', '=') for one in untyped)})"


def _first_sentence(value: Any) -> str:
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return _ticks(text).replace("|", "\\|")


def _signature(name: str, value: Any) -> str:
    """A call as Python would write it, one parameter a line where it is long."""
    parameters: list[str] = []
    found = inspect.signature(value).parameters.values()
    for one in found:
        if one.kind is one.KEYWORD_ONLY and "*" not in parameters and not any(p.startswith("*") for p in parameters):
            parameters.append("*")
        parameters.append(_parameter(one))
    back = inspect.signature(value).return_annotation
    arrow = "" if inspect.isclass(value) or back in {inspect.Signature.empty, "None"} else f" -> {back}"
    line = f"{name}({', '.join(parameters)}){arrow}"
    if len(line) <= _SHOWN_CHARACTERS:
        return line
    return f"{name}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){arrow}"


def _parameter(one: inspect.Parameter) -> str:
    stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
    text = stars + one.name
    if one.annotation is not one.empty:
        text += f": {one.annotation}"
    if one.default is not one.empty:
        text += " = ..." if callable(one.default) or "<" in repr(one.default) else f" = {one.default!r}"
    return text


def _short(value: Any) -> str:
    text = repr(value).replace("typing.", "")
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _ticks(text: str) -> str:
    return text.replace("``", "`")


def _markdown(text: str) -> str:
    """A docstring as Markdown: sections as lists, examples as blocks of code."""
    out: list[str] = []
    lines = iter([*text.splitlines(), ""])
    section, block = False, list[str]()
    for line in lines:
        if found := _SECTION.match(line):
            section = True
            out += [f"**{_SECTION_TITLES.get(found[1], found[1])}**", ""]
        elif section and line.startswith("    "):
            entry = _ENTRY.match(line)
            out.append(_ticks(f"- `{entry[1]}`: {entry[2]}" if entry else "  " + line.strip()))
        elif line.startswith("    ") or (block and not line):
            block.append(line[4:])
        else:
            out += _fenced(block)
            section, block = section and not line, []
            out.append(_ticks(line))
    return "\n".join([*out, *_fenced(block)]).strip()


def _fenced(block: list[str]) -> list[str]:
    if not block:
        return []
    while block and not block[-1]:
        block.pop()
    return ["```python" if _is_python("\n".join(block)) else "```text", *block, "```", ""]


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
