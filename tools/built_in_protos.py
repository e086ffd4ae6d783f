"""Write the descriptors of the files that schema registries have built in, from the packages of those who publish them.

python -m tools.built_in_protos
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from connectors.protobuf.confluent.registry import BUILT_IN

__all__ = ["published"]

_GOOGLE: Final = (
    "calendar_period color date datetime dayofweek decimal expr fraction interval latlng localized_text money month "
    "phone_number postal_address quaternion timeofday"
)
_MODULES: Final = (
    ("confluent_kafka", "schema_registry/confluent/meta_pb2.py"),
    ("confluent_kafka", "schema_registry/confluent/type/decimal_pb2.py"),
    *(("google.type", f"{name}_pb2.py") for name in _GOOGLE.split()),
)


def published() -> bytes:
    """Return the descriptor set of these files, as their publishers' packages have them."""
    found = FileDescriptorSet()
    for package, module in _MODULES:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(package)
        found.file.append(_descriptor(Path(spec.submodule_search_locations[0]) / module))
    return found.SerializeToString(deterministic=True)


def _descriptor(module: Path) -> FileDescriptorProto:
    """Return the descriptor in a generated module, which is not imported: that can need further packages."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "AddSerializedFile"
        ):
            return FileDescriptorProto.FromString(ast.literal_eval(node.args[0]))
    raise ValueError(f"{module} holds no descriptor")


if __name__ == "__main__":
    target = Path(__file__).parents[1] / "connectors/protobuf/confluent" / BUILT_IN
    target.write_bytes(published())
