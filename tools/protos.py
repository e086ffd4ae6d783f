"""Builds descriptor sets from the files in proto/: ``./dev protos [FOLDER]``.

One set for each file, with its imports: ``proto/orders.proto`` becomes ``FOLDER/orders.desc`` (build/proto by default).
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import grpc_tools  # type: ignore[import-untyped]
from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "proto"


def compile_set(source: Path, target: Path, *includes: Path, imports: bool = True) -> None:
    """Compile a .proto file into a descriptor set.

    Args:
        source: the file.
        target: the descriptor set to write.
        *includes: folders where imports are looked for; those of protobuf itself are found without.
        imports: whether the set holds what the file imports too.

    Raises:
        ValueError: protoc refuses the file; it has said why.
    """
    known = Path(grpc_tools.__file__).parent / "_proto"
    folders = [f"-I{folder}" for folder in (*(includes or (source.parent,)), known)]
    wanted = ["--include_imports"] if imports else []
    if protoc.main(["protoc", *folders, *wanted, f"--descriptor_set_out={target}", str(source)]):
        raise ValueError(f"protoc refuses {source}")


def build(folder: Path) -> list[Path]:
    """Build all sets into a folder, and give their paths."""
    built = []
    for source in sorted(SOURCES.rglob("*.proto")):
        target = folder / source.relative_to(SOURCES).with_suffix(".desc")
        target.parent.mkdir(parents=True, exist_ok=True)
        compile_set(source, target, SOURCES)
        built.append(target)
    return built


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # its output may be piped into head
    for path in build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "proto"):
        print(path)  # noqa: T201 - what it is for
