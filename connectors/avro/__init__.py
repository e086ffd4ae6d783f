"""Avro messages in columns, without a jar: Spark's ``from_avro`` and ``to_avro``.

    from connectors.avro import from_avro, to_avro

`functions` is where to begin; then `schema` (parsing, columns, resolution, the schema of a column), `decoder`,
`encoder`, and `registered` (frames, with the schemas of a registry).
"""

from __future__ import annotations

from connectors.core.formats import extra_imports, spark_imports

with spark_imports("connectors.avro"), extra_imports("avro", "connectors.avro"):
    from connectors.avro.functions import from_avro, to_avro

__all__ = ["from_avro", "to_avro"]
