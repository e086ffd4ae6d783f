"""Protobuf messages in columns, without a jar: Spark's ``from_protobuf`` and ``to_protobuf``.

    from connectors.protobuf import from_protobuf, to_protobuf

`functions` is where to begin; then `schema.plan` (columns and rules), `upb` (the reference codec, which also chooses by
the size of a batch), `ptars` (the fast one) and `confluent` (frames and registries).
"""

from __future__ import annotations

from connectors.core.formats import extra_imports, spark_imports

with spark_imports("connectors.protobuf"), extra_imports("protobuf", "connectors.protobuf"):
    from connectors.protobuf.functions import from_protobuf, register_sql, to_protobuf

__all__ = ["from_protobuf", "register_sql", "to_protobuf"]
