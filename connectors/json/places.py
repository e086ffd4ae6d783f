"""Where a text is not JSON, or not of its columns, since Spark's parser does not tell.

Spark's expressions say it, for bad rows alone. They are SQL: PySpark's functions take a millisecond each to build them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from connectors.core.functions.calls import session_value
from connectors.json.schema.columns import JsonColumn

MOST_LEVELS: Final = 30  # the JVM's stack takes expressions of about 50
_MOST_BYTES: Final = 1 << 16  # that are looked at: a KB takes about 2 ms
_MOST_CHARACTERS: Final = 200  # of a path: at most 800 bytes of the 1,000 that an error may have
_NAME: Final = re.compile(r'[^"\\?\x01\x02\s][^"\\?\x01\x02]*')  # as Spark takes one in a path within a VARIANT
NO_JSON: Final = "is not JSON of the columns of the schema"
_MISFIT, _TYPE = f"{NO_JSON}: ", " does not fit the type "
_SPACE: Final = r"[ \t\r\n]*"
_ESCAPE: Final = r"\\[\x22\x27\\/bfnrtu]"
_TOKEN: Final = r"(?:\x22[^\x22]*\x22?|\x27[^\x27]*\x27?|[{}\[\]:,]|[^ \t\r\n\x22\x27{}\[\]:,]+|^)" + _SPACE
_TEXT: Final = rf"^(\x22[^\x22\\\x00-\x1f]*\x22|\x27[^\x27\\\x00-\x1f]*\x27){_SPACE}$"
_SCALAR: Final = rf"^(true|false|null|NaN|[-+]?(Infinity|INF)|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?){_SPACE}$"
# What is expected after a token, by what was expected before it and the kind of the token; nothing after a whole value.
_FOLLOWING: Final = (
    "v{=m;i{=m;v[=i;i[=i;ntext=c;mtext=c;c:=v;{,=n;[,=v;vspace=v;vtext=;vscalar=;itext=;iscalar=;i]=;m}=;{}=;[]="
)
_EXPECTED: Final = "v=a value;i=a value or ];n=a name;m=a name or };c=a colon;{=a comma or };[=a comma or ]"


def _let(name: str, value: str, body: str) -> str:
    """Return SQL that evaluates a value once, however often the body has it; as `with_once`."""
    return f"aggregate(array(), {value}, ({name}, none) -> {name}, {name} -> {body})"


def _one_of(pairs: str, key: str) -> str:
    return f"try_element_at(str_to_map('{pairs}', ';', '='), {key})"


_NEW_STATE: Final = """CASE
    WHEN new.expected IS NULL THEN named_struct('read', state.read, 'expected', state.expected, 'open', NULL)
    WHEN new.expected = '' AND new.open = '' THEN named_struct('read', state.read, 'expected', '', 'open', NULL)
    ELSE named_struct('read', state.read + length(token), 'expected',
        CASE WHEN new.expected = '' THEN substring(new.open, 1, 1) ELSE new.expected END, 'open', new.open) END"""
_NEW: Final = f"""named_struct(
    'expected', {_one_of(_FOLLOWING, "concat(state.expected, kind)")},
    'open', CASE WHEN kind IN ('{{', '[') THEN concat(kind, state.open)
            WHEN kind IN ('}}', ']') THEN substring(state.open, 2) ELSE state.open END)"""
_KIND: Final = f"""CASE WHEN token RLIKE r'{_TEXT}' THEN 'text' WHEN token RLIKE r'{_SCALAR}' THEN 'scalar'
    WHEN token RLIKE r'^{_SPACE}$' THEN 'space' ELSE substring(token, 1, 1) END"""
# The state is how many characters were read, what is expected, and what is open, the last one first. At a token that is
# not what was expected, and at the end of the value, `open` becomes NULL, and the state stays the same.
_SYNTAX: Final = f"""aggregate(
    regexp_extract_all(regexp_replace(it.text, r'{_ESCAPE}', '__'), r'{_TOKEN}', 0),
    named_struct('read', 0, 'expected', 'v', 'open', ''),
    (state, token) -> CASE WHEN state.open IS NULL THEN state
        ELSE {_let("kind", _KIND, _let("new", _NEW, _NEW_STATE))} END,
    last -> CASE WHEN last.expected <> '' THEN concat(
        'is not JSON from byte ', octet_length(substring(it.text, 1, last.read)), ' of ', octet_length(it.text),
        ', where ', {_one_of(_EXPECTED, "last.expected")}, ' is expected') END)"""


def fault_of(text: Column, row: Column, column: JsonColumn, options: Mapping[str, str]) -> Column:
    """Return what is wrong with a text, with the byte or the column; NULL if that cannot be said.

    Args:
        text: what Spark's from_json did not read as a whole, or perhaps did not.
        row: what it gave instead.
        column: what it was to read.
        options: that it was given.
    """
    shown = list[str]()
    if not any(name.startswith("allow") for name in options):
        unread = "NOT it.is_json" if column.fields else "NOT it.is_json AND it.row IS NULL"
        shown.append(f"CASE WHEN {unread} AND octet_length(it.text) <= {_MOST_BYTES} THEN {_SYNTAX} END")
    if session_value("spark.sql.json.enablePartialResults", "true").lower() == "true":  # else Spark gives no fields
        shown += _misfits(column, "it.row", "it.whole", "")
    wrong = "schema_of_variant(it.whole) NOT LIKE 'OBJECT%'" if column.fields else "it.row IS NULL"
    why = f"concat({_literal(_MISFIT)}, 'it', {_literal(_TYPE + column.kind)})"
    shown.append(f"CASE WHEN {wrong} AND it.whole IS NOT NULL THEN {why} END")
    whole = F.from_json(text, "variant", {**options, "mode": "PERMISSIVE"})
    values = {"text": text, "row": row, "whole": whole, "is_json": F.try_parse_json(text).isNotNull()}
    it = F.struct(*(value.alias(name) for name, value in values.items()))
    body = F.expr(f"it -> coalesce({', '.join(shown)})")
    return F.call_function("aggregate", F.array(), it, F.expr("(it, none) -> it"), body)


def _misfits(column: JsonColumn, read: str, value: str, path: str, level: int = 0) -> list[str]:
    """Return what finds a field that is NULL in a row and not in its VARIANT: an expression for each struct."""
    if level > MOST_LEVELS:
        return []
    if column.items is not None:
        one, other = f"read{level}", f"value{level}"
        every = f"zip_with({read}, try_cast({value} AS ARRAY<VARIANT>), ({one}, {other}) ->"
        if column.kind == "map":
            entry = f"entry{level}"
            one, other = f"{entry}.value", f"try_element_at(try_cast({value} AS MAP<STRING, VARIANT>), {entry}.key)"
            every = f"transform(map_entries({read}), {entry} ->"
        inner = ", ".join(_misfits(column.items, one, other, f"{path}[]", level + 1))
        return [f"get(filter({every} coalesce({inner})), fault -> fault IS NOT NULL), 0)"] if inner else []
    fields = {name: field for name, field in column.fields if _NAME.fullmatch(name)}
    if not fields:
        return []
    pairs = "\x01".join(f"{name}\x02{field.kind}" for name, field in fields.items())
    types = f"str_to_map({_literal(pairs)}, char(1), char(2))"
    in_text = f"map_filter(try_cast({value} AS MAP<STRING, VARIANT>), (name, value) -> NOT is_variant_null(value))"
    present = f"json_object_keys(to_json({read}, map('ignoreNullFields', 'true')))"
    missing = f"get(array_except(array_intersect(map_keys({in_text}), map_keys({types})), {present}), 0)"
    around = _literal(f"{path}.".removeprefix("."))
    where = f"left(concat({around}, name), {_MOST_CHARACTERS})"
    why = f"concat({_literal(_MISFIT)}, {where}, {_literal(_TYPE)}, element_at({types}, name))"
    shown = [_let("name", missing, why)]
    for name, field in fields.items():
        quoted, inside = name.replace("`", "``"), _literal(f'$["{name}"]')
        of_value = f"try_variant_get({value}, {inside}, 'variant')"
        shown += _misfits(field, f"{read}.`{quoted}`", of_value, f"{path}.{name}", level + 1)
    return shown


def _literal(text: str) -> str:
    """Return a text in SQL, whatever is in it."""
    return f"decode(X'{text.encode(errors='replace').hex()}', 'UTF-8')"
