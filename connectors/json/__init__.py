"""JSON messages of a schema registry in columns, without a jar: the schema's columns, decoded by Spark's ``from_json``.

    from connectors.json import from_json_registry, to_json_registry

`functions` is where to begin; then `schema` (parsing, what a schema says of a value, columns), `registry` (the schemas
of a registry) and `worker`, which reads the frames.
"""

from __future__ import annotations

from connectors.core.formats import extra_imports, spark_imports

with spark_imports("connectors.json"), extra_imports("json", "connectors.json"):
    from connectors.json.functions import from_json_registry, to_json_registry

__all__ = ["from_json_registry", "to_json_registry"]
