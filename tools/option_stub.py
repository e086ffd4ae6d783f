"""Writes the stub of `connectors.options`: every option of a format as a keyword with its type."""

from __future__ import annotations

import re

from connectors.core.formats import CONNECTORS, Connector
from connectors.core.options.declaration import Option, declared_options

_TYPES = {"integer": "int", "number": "float", "boolean": "bool", "size": "int | str"}
_HEAD = """# Generated from the declarations by ./dev docs.
from collections.abc import Mapping
from typing import Literal, TypedDict, Unpack

__all__ = ["kafka_py", "kinesis", "pubsub"]
"""


def option_stub() -> str:
    """Return the text of the stub."""
    return "".join([_HEAD, *map(_options, CONNECTORS), "\n", *map(_function, CONNECTORS)])


def _options(connector: Connector) -> str:
    declared = {
        option.name: option for cls in connector.option_classes().values() for option in declared_options(cls).values()
    }
    lines = [f"    {name}: {_type(declared[name])}" for name in sorted(declared) if name.isidentifier()]
    return "\n".join(["", f"class _{connector.package.capitalize()}Options(TypedDict, total=False):", *lines, ""])


def _type(option: Option) -> str:
    if option.kind.name == "choice":
        values = re.split(r", | or ", option.kind.legal)
        return "Literal[" + ", ".join(f'"{value}"' for value in values) + "]"
    return _TYPES.get(option.kind.name, "str")


def _function(connector: Connector) -> str:
    settings = "settings: Mapping[str, object] | None = None, /"
    options = f"**options: Unpack[_{connector.package.capitalize()}Options]"
    return f"def {connector.format}({settings}, {options}) -> dict[str, str]: ...\n"
