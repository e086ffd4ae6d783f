"""Random Avro schemas, values of them, and readers' schemas that differ from the writer's in what Avro resolves.

A schema is Avro's JSON, in which each use of a named type holds its whole definition; `rendered` gives what parsers
take. A value is as in Avro itself: dates, times and decimals are numbers and bytes, a value of a union is a pair of the
number of its branch and the value. Nothing takes no byte, but a null in a union.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

__all__ = [
    "FULL",
    "SPACES",
    "Aliased",
    "Resolution",
    "Schemas",
    "Values",
    "has_promotable_union",
    "kind_of",
    "rendered",
]

FULL = "fullName"
"""An attribute of our own: the name of a type with its namespace."""

_PRIMITIVES = ("boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "uuid": "string",
}
_NESTED = ("array", "map", "record", "record", "nullable", "union", "again")
SPACES = ("shop", "shop.orders", "a.b.c")
_LETTERS = "abcXYZ 0129_ä€\u0000\n\U0001f600"
_DAYS = (-719_162, 2_932_896)  # of the years 1 to 9999
_DAY_MICROS = 86_400_000_000
_MOST_DIGITS = 38
_WRONG = (None, True, 7, 1.5, 10**12, -(2**63) - 1, "no value", [], ["a"], {}, {"a": 1})
"""Defaults that most types cannot have."""
_FIRST_ADDED = 1000
"""No writer's schema has so many named types."""


def kind_of(schema: Any) -> str:
    """Return the type of a schema."""
    if isinstance(schema, list):
        return "union"
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def rendered(schema: Any, *, logical: bool = True) -> Any:
    """Return the schema with each named type defined once; perhaps without logical types."""
    seen = set[str]()

    def render(schema: Any, space: str) -> Any:
        if isinstance(schema, list):
            return [render(branch, space) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        full = schema.get(FULL, "")
        if full in seen:
            return full
        made = {key: value for key, value in schema.items() if key != FULL and (logical or key != "logicalType")}
        if full:
            seen.add(full)
            own = full.rpartition(".")[0]
            if "namespace" not in made and "." not in made["name"] and own != space:
                made["namespace"] = own  # it stands elsewhere than where it was made
            space = own
        for key in {"items", "values"} & made.keys():
            made[key] = render(made[key], space)
        if "fields" in made:
            made["fields"] = [{**field, "type": render(field["type"], space)} for field in made["fields"]]
        return made

    return render(schema, "")


def full_name(name: str, space: str) -> str:
    """Return a name with its namespace."""
    return f"{space}.{name}" if space else name


def decimal_size(precision: int) -> int:
    """Return how many bytes the largest decimal of so many digits takes."""
    return (10**precision).bit_length() // 8 + 1


class Schemas:
    """Makes random schemas.

    Args:
        chance: what is random.
        spaces: the namespaces of named types, which then all have one; or none.
        first: the number of the first named type.
    """

    def __init__(self, chance: Random, spaces: Sequence[str], first: int = 0) -> None:
        self._chance, self._spaces = chance, spaces
        self._count = first
        self._named: list[Any] = []

    def root(self) -> Any:
        """Return a schema: mostly a record."""
        space = self._chance.choice(self._spaces) if self._spaces else ""
        if self._chance.random() < 0.85:
            return self._record(3, space)
        made = self.make(2, space)
        return made if kind_of(made) != "union" else self._record(2, space)

    def make(self, depth: int, space: str) -> Any:
        """Return a schema that holds others in so many levels."""
        kinds = [*_PRIMITIVES, "logical", "decimal", "enum", "fixed", *(_NESTED * 2 if depth else ())]
        kind = self._chance.choice(kinds)
        if kind in _PRIMITIVES:
            return kind
        return getattr(self, f"_{kind}")(depth - 1, space)

    def _names(self, space: str) -> dict[str, str]:
        """Return a name, with a namespace in one of the forms that there are."""
        self._count += 1
        name = f"T{self._count}"
        if not self._spaces:
            return {"name": name, FULL: name}
        own, form = self._chance.choice(self._spaces), self._chance.randrange(4)
        if form == 0:
            return {"name": name, "namespace": own, FULL: full_name(name, own)}
        if form == 1:
            return {"name": full_name(name, own), FULL: full_name(name, own)}
        return {"name": name, FULL: full_name(name, space)}

    def _added(self, schema: Any) -> Any:
        self._named.append(schema)
        return schema

    def _logical(self, _depth: int, _space: str) -> Any:
        name = self._chance.choice(list(_LOGICAL))
        return {"type": _LOGICAL[name], "logicalType": name}

    def _decimal(self, _depth: int, space: str) -> Any:
        precision = self._chance.randint(1, _MOST_DIGITS)
        digits = {"logicalType": "decimal", "precision": precision, "scale": self._chance.randint(0, precision)}
        if self._chance.random() < 0.5:
            return {"type": "bytes", **digits}
        size = decimal_size(precision) + self._chance.randrange(3)
        return self._added({"type": "fixed", **self._names(space), "size": size, **digits})

    def _enum(self, _depth: int, space: str) -> Any:
        symbols = [f"S{number}" for number in range(self._chance.randint(1, 70))]
        return self._added({"type": "enum", **self._names(space), "symbols": symbols})

    def _fixed(self, _depth: int, space: str) -> Any:
        return self._added({"type": "fixed", **self._names(space), "size": self._chance.randint(1, 20)})

    def _array(self, depth: int, space: str) -> Any:
        return {"type": "array", "items": self.make(depth, space)}

    def _map(self, depth: int, space: str) -> Any:
        return {"type": "map", "values": self.make(depth, space)}

    def _record(self, depth: int, space: str) -> Any:
        names = self._names(space)
        inside = names[FULL].rpartition(".")[0]
        fields = [
            {"name": f"{self._chance.choice(['f', 'Field_', '_x'])}{number}", "type": self.make(depth, inside)}
            for number in range(self._chance.randint(1, 6))
        ]
        return self._added({"type": "record", **names, "fields": fields})

    def _again(self, depth: int, space: str) -> Any:
        return self._chance.choice(self._named) if self._named else self.make(depth, space)

    def _nullable(self, depth: int, space: str) -> Any:
        inner = self.make(depth, space)
        branches = ["null", inner] if kind_of(inner) != "union" else inner
        return self._chance.sample(branches, len(branches))

    def _union(self, depth: int, space: str) -> Any:
        if self._chance.random() < 0.25:
            branches = list(self._chance.choice([("int", "long"), ("float", "double")]))
        else:
            kinds = ["boolean", self._chance.choice(["int", "long"]), self._chance.choice(["float", "double"])]
            branches = [*kinds, "string", "bytes", self._array(0, space), self._map(0, space)]
            branches += [self._record(depth, space), self._enum(0, space), self._fixed(0, space)]
            branches = self._chance.sample(branches, self._chance.randint(2, 5))
        branches += ["null"] if self._chance.random() < 0.5 else []
        return self._chance.sample(branches, len(branches))


class Values:
    """Makes random values.

    Args:
        chance: what is random.
        plain: floats are finite, and bytes are UTF-8: for defaults, and for what may be read as text.
    """

    def __init__(self, chance: Random, *, plain: bool = False) -> None:
        self._chance, self._plain = chance, plain

    def of(self, schema: Any) -> Any:
        """Return a value of a schema."""
        if isinstance(schema, list):
            branch = self._chance.randrange(len(schema))
            return branch, self.of(schema[branch])
        if isinstance(schema, dict) and "logicalType" in schema:
            return self._logical(schema)
        return getattr(self, f"_{kind_of(schema)}")(schema)

    def _logical(self, schema: Any) -> Any:
        name = schema["logicalType"]
        if name == "decimal":
            digits = 10 ** self._chance.randint(0, schema["precision"])
            number = self._chance.randint(1 - digits, digits - 1)
            fits = number.bit_length() // 8 + 1 if number >= 0 else (number + 1).bit_length() // 8 + 1
            return number.to_bytes(schema.get("size", fits), "big", signed=True)
        if name == "uuid":
            text = f"{self._chance.getrandbits(128):032x}"
            return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        if name.startswith("time-"):
            return self._chance.randrange(_DAY_MICROS // (1000 if name == "time-millis" else 1))
        day = self._chance.randint(*(_DAYS if self._chance.random() < 0.3 else (-10_000, 40_000)))
        if name == "date":
            return day
        return (day * _DAY_MICROS + self._chance.randrange(_DAY_MICROS)) // (1000 if name.endswith("millis") else 1)

    def _null(self, _schema: Any) -> None:
        return None

    def _boolean(self, _schema: Any) -> bool:
        return self._chance.random() < 0.5

    def _whole(self, bits: int) -> int:
        size = self._chance.randrange(bits)
        return self._chance.choice([2**size - 1, -(2**size), self._chance.randint(-(2**size), 2**size - 1)])

    def _int(self, _schema: Any) -> int:
        return self._whole(32)

    def _long(self, _schema: Any) -> int:
        return self._whole(64)

    def _float(self, _schema: Any) -> float:
        number = struct.unpack("<f", struct.pack("<I", self._chance.getrandbits(32)))[0]
        return self._number(float(number))

    def _double(self, _schema: Any) -> float:
        return self._number(struct.unpack("<d", struct.pack("<Q", self._chance.getrandbits(64)))[0])

    def _number(self, anything: float) -> float:
        special = [0.0, -0.0, 1.5] + ([] if self._plain else [float("inf"), float("-inf"), float("nan"), anything])
        return self._chance.choice([*special, float(self._whole(20))])

    def _bytes(self, schema: Any) -> bytes:
        if self._plain:
            return self._string(schema).encode()
        return self._chance.randbytes(self._length(300))

    def _string(self, _schema: Any) -> str:
        return "".join(self._chance.choices(_LETTERS, k=self._length(300)))

    def _length(self, most: int) -> int:
        return self._chance.choice([0, 1, self._chance.randrange(12), self._chance.randrange(12), most])

    def _fixed(self, schema: Any) -> bytes:
        return self._chance.randbytes(schema["size"])

    def _enum(self, schema: Any) -> str:
        return str(self._chance.choice(schema["symbols"]))

    def _array(self, schema: Any) -> list[Any]:
        return [self.of(schema["items"]) for _ in range(self._chance.choice([0, 1, 2, 3, 8]))]

    def _map(self, schema: Any) -> dict[str, Any]:
        count = self._chance.choice([0, 1, 2, 5])
        return {f"{number}{self._string(schema)}": self.of(schema["values"]) for number in range(count)}

    def _record(self, schema: Any) -> dict[str, Any]:
        return {field["name"]: self.of(field["type"]) for field in schema["fields"]}


def default_of(schema: Any, values: Values) -> Any:
    """Return a default in Avro's JSON; that of a union is one of its first branch."""
    kind = kind_of(schema)
    if kind == "union":
        return default_of(schema[0], values)
    if kind == "record":
        return {field["name"]: default_of(field["type"], values) for field in schema["fields"]}
    if kind == "array":
        return [default_of(schema["items"], values)]
    if kind == "map":
        return {"key": default_of(schema["values"], values)}
    value = values.of(schema)
    return value.decode("latin-1") if isinstance(value, bytes) else value


PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""What a type may be read as."""


def has_promotable_union(schema: Any) -> bool:
    """Return whether a union in a schema has a branch that can be read as another one before it."""
    kind = kind_of(schema)
    if kind == "union":
        kinds = [kind_of(branch) for branch in schema]
        found = any(before in PROMOTIONS.get(one, ()) for n, one in enumerate(kinds) for before in kinds[:n])
        return found or any(map(has_promotable_union, schema))
    if kind == "record":
        return any(has_promotable_union(field["type"]) for field in schema["fields"])
    return kind in {"array", "map"} and has_promotable_union(schema["items" if kind == "array" else "values"])


class Resolution:
    """Makes the schema of a reader from that of a writer.

    Args:
        chance: what is random.
        spaces: the namespaces of named types, as in the writer's schema.
    """

    def __init__(self, chance: Random, spaces: Sequence[str]) -> None:
        self._chance, self._spaces = chance, spaces
        self._made: dict[str, Any] = {}
        self.odd = chance.random() < 0.4
        """Whether there are aliases that are other names, or wrong defaults: only Java is asked for these."""
        self._adding = Schemas(chance, spaces, _FIRST_ADDED)
        self._defaults = Values(chance, plain=True)

    def of(self, schema: Any) -> Any:
        """Return the reader's schema; that of a named type is the same at each of its places."""
        made = self._changed(schema)
        if self.odd:
            return made
        if kind_of(made) == "record" and self._chance.random() < 0.2:
            made["aliases"] = [made[FULL]]
            made[FULL] = made["name"] = full_name("Renamed", made[FULL].rpartition(".")[0])
        return made

    def _changed(self, schema: Any) -> Any:
        kind = kind_of(schema)
        if kind in PROMOTIONS and not isinstance(schema, dict):
            return self._chance.choice(PROMOTIONS[kind]) if self._chance.random() < 0.3 else schema
        if kind == "union":
            return self._union(schema)
        if kind in {"array", "map"}:
            inner = "items" if kind == "array" else "values"
            return {**schema, inner: self._changed(schema[inner])}
        if not isinstance(schema, dict) or FULL not in schema:
            return schema
        if schema[FULL] not in self._made:
            # The namespace of a definition must not depend on where it stands: its place may be another one.
            named = {**schema, "name": schema[FULL]}
            named.pop("namespace", None)
            self._made[schema[FULL]] = self._renamed(getattr(self, f"_{kind}")(named))
        return self._made[schema[FULL]]

    def _renamed(self, schema: Any) -> Any:
        """Return a named type, perhaps with another name or with an alias that another type has for its name."""
        if not self.odd or self._chance.random() < 0.7:
            return schema
        space, _, name = schema[FULL].rpartition(".")
        if self._chance.random() < 0.3 and self._made:
            return {**schema, "aliases": [self._chance.choice(list(self._made))]}
        new = full_name(f"{name}{self._chance.choice(['v2', 'New'])}", space)
        alias = name if self._chance.random() < 0.5 else schema[FULL]
        return {**schema, "name": new, FULL: new, "aliases": [alias]}

    def _union(self, schema: list[Any]) -> Any:
        others = [branch for branch in schema if branch != "null"]
        if len(others) == 1 and self._chance.random() < 0.05:
            return self._changed(others[0])  # its nulls cannot be read
        branches = [branch if isinstance(branch, str) else self._changed(branch) for branch in schema]
        if "null" not in branches and self._chance.random() < 0.3:
            branches.append("null")
        return self._chance.sample(branches, len(branches))

    def _fixed(self, schema: Any) -> Any:
        return schema

    def _enum(self, schema: Any) -> Any:
        symbols = list(schema["symbols"])
        change = self._chance.random()
        if len(symbols) > 1 and change < 0.2:
            symbols.remove(self._chance.choice(symbols))
            if change < 0.15:
                schema = {**schema, "default": symbols[0]}
        symbols += [f"New{number}" for number in range(self._chance.randrange(3))]
        return {**schema, "symbols": self._chance.sample(symbols, len(symbols))}

    def _record(self, schema: Any) -> Any:
        fields = [self._field(field) for field in schema["fields"] if self._chance.random() > 0.15]
        for number in range(self._chance.choice([0, 0, 1, 2]) if fields else 1):
            kind = self._adding.make(1, self._spaces[0] if self._spaces else "")
            if isinstance(kind, list):  # a default of the first branch that is text in JSON would be of two branches
                kind = sorted(kind, key=lambda branch: kind_of(branch) in {"bytes", "fixed"})
            fields.append({"name": f"added{number}", "type": kind, "default": self._default(kind)})
        if self.odd and self._chance.random() < 0.2:
            field = self._chance.choice(fields)
            field["aliases"] = [self._chance.choice(schema["fields"])["name"]]
        return {**schema, "fields": self._chance.sample(fields, len(fields))}

    def _default(self, kind: Any) -> Any:
        """Return a default, perhaps one that is not a value of the type; Java pads texts for a fixed."""
        if self.odd and kind_of(kind) not in {"union", "fixed"} and self._chance.random() < 0.15:
            return self._chance.choice(_WRONG)
        return default_of(kind, self._defaults)

    def _field(self, field: Any) -> Any:
        kind = self._changed(field["type"])
        if kind_of(kind) != "union" and self._chance.random() < 0.1:
            kind = self._chance.sample(["null", kind], 2)
        if self._chance.random() < 0.15:
            return {"name": f"renamed_{field['name']}", "type": kind, "aliases": [field["name"]]}
        return {"name": field["name"], "type": kind}


class Aliased:
    """Gives the types and fields of a schema aliases that are names of others.

    Args:
        chance: what is random.
    """

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._made: dict[str, Any] = {}

    def of(self, schema: Any, doc: str) -> Any:
        """Return the schema with aliases and docs; another doc makes it no other schema."""
        kind = kind_of(schema)
        if kind == "union":
            return [self.of(branch, doc) for branch in schema]
        if kind in {"array", "map"}:
            inner = "items" if kind == "array" else "values"
            return {**schema, inner: self.of(schema[inner], doc)}
        if not isinstance(schema, dict) or FULL not in schema:
            return schema
        if schema[FULL] + doc not in self._made:
            made = self._made[schema[FULL] + doc] = {"aliases": self._others(schema[FULL]), **schema, "doc": doc}
            names = [field["name"] for field in schema.get("fields", ())]
            made |= {"fields": [self._field(field, names, doc) for field in schema["fields"]]} if names else {}
        return self._made[schema[FULL] + doc]

    def _others(self, name: str) -> list[str]:
        names = {schema[FULL] for schema in self._made.values()} - {name}
        return [self._chance.choice(sorted(names))] if names and self._chance.random() < 0.5 else []

    def _field(self, field: Any, names: list[str], doc: str) -> Any:
        aliases = field.get("aliases", [self._chance.choice(names)] if self._chance.random() < 0.4 else [])
        return {**field, "type": self.of(field["type"], doc), "aliases": aliases, "doc": doc}
