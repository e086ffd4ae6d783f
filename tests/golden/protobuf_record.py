"""Records the golden corpus: ``python -m tests.golden.protobuf_record [--python PYTHON --jar JAR | --fetch FOLDER]``.

Each answer says where its truth comes from: ``jvm 3.4.1`` if Spark's own function was asked and gave the same, else
``read``: it follows from reading Spark's sources, and the reference codec gave it. A difference between the two is an
error here, so a corpus is only written when there is none.

``--fetch`` gets pyspark 3.4.1 by pip and the jar by Maven into a folder: the newest pair that Maven Central has.
"""

# ruff: noqa: T201 - it prints its results
from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.protobuf.worker import Engine
from tests.golden.protobuf_cases import CASES, Case
from tests.support.protobuf_rig import Rig, descriptors

CORPUS = Path(__file__).parent / "protobuf" / "corpus.json"
JVM_SCRIPT = Path(__file__).parent / "protobuf_jvm.py"
SPARK = "3.4.1"
JAR = f"spark-protobuf_2.12-{SPARK}.jar"


def plain(kind: pa.DataType, value: Any) -> Any:  # noqa: PLR0911 - one for each kind
    """A value as JSON, in the form of protobuf_jvm.py."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: plain(field.type, value[field.name]) for field in kind}
    if pa.types.is_map(kind):
        return [[plain(kind.key_type, key), plain(kind.item_type, item)] for key, item in value]
    if pa.types.is_list(kind):
        return [plain(kind.value_type, item) for item in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, dt.datetime):
        return (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    return str(value) if isinstance(value, Decimal) else value


def ours(case: Case, rig: Rig) -> dict[str, Any]:
    """The answer of this pack."""
    rig = rig.of(case.schema)
    if case.encode:
        row, kind = struct_of(case.encode)
        try:
            [encoded] = rig.encode(case.message, [row], kind)
        except ConnectorError as error:
            return {"bytes": {"error": error.code}}
        return {"bytes": None if encoded is None else encoded.hex()}
    decoded = rig.raw(case.message, [bytes.fromhex(row) for row in case.decode], case.options)
    rows = [plain(decoded.values.type, row) for row in decoded.values.to_pylist()]
    permissive = case.options.get("mode", "").upper() == "PERMISSIVE"
    for row in () if permissive else decoded.errors:
        rows[row] = {"error": "MALFORMED_PROTOBUF_MESSAGE"}
    return {"schema": rig.ddl(case.message, case.options), "rows": rows}


def struct_of(expression: str) -> tuple[dict[str, Any], pa.DataType]:
    """The row and the type of a SQL expression, for the few forms that the cases use."""
    found = _parse(re.findall(r"timestamp'[^']*'|interval '[^']*' second|'[^']*'|[\w.<>:-]+|[(),]", expression))
    return found[1], found[0]


def _parse(tokens: list[str]) -> tuple[pa.DataType, Any]:  # noqa: PLR0911 - one for each kind
    """The type and the value of an expression; takes its tokens off the list."""
    token = tokens.pop(0)
    if token in {"named_struct", "map", "array", "binary"}:
        return _collection(token, _arguments(tokens))
    if token == "cast":
        return _cast(tokens)
    if token.startswith("timestamp"):
        moment = dt.datetime.fromisoformat(token[10:-1]).replace(tzinfo=dt.UTC)
        return pa.timestamp("us", "UTC"), moment
    if token.startswith("interval"):
        return pa.duration("us"), dt.timedelta(seconds=float(token.split("'")[1]))
    if token.startswith("'"):
        return pa.string(), token[1:-1]
    if token.endswith("L"):
        return pa.int64(), int(token[:-1])
    return pa.int32(), int(token)


def _arguments(tokens: list[str]) -> list[tuple[pa.DataType, Any]]:
    tokens.pop(0)
    found = []
    while True:
        found.append(_parse(tokens))
        if tokens.pop(0) == ")":
            return found


def _collection(name: str, items: list[tuple[pa.DataType, Any]]) -> tuple[pa.DataType, Any]:
    if name == "array":
        return pa.list_(items[0][0]), [value for _, value in items]
    pairs = list(zip(items[::2], items[1::2], strict=True))
    if name == "map":
        return pa.map_(items[0][0], items[1][0]), [(key[1], value[1]) for key, value in pairs]
    return pa.struct([(key[1], value[0]) for key, value in pairs]), {key[1]: value[1] for key, value in pairs}


_TYPES = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "double": pa.float64()}


def _cast(tokens: list[str]) -> tuple[pa.DataType, Any]:
    tokens.pop(0)
    value = tokens.pop(0)
    tokens.pop(0)
    name = tokens.pop(0)
    tokens.pop(0)
    kind = _TYPES[name] if name in _TYPES else pa.struct([("text", pa.string())])
    return kind, None if value == "null" else float(value.strip("'"))


def ask_jvm(python: str, jar: str) -> tuple[str, dict[str, Any]]:
    """The version of Spark, and its answers by the names of the cases."""
    asked = [case for case in CASES if case.jvm]
    with TemporaryDirectory() as folder:
        questions = []
        for case in asked:
            path = Path(folder) / f"{case.schema}.desc"
            path.write_bytes(descriptors(case.schema))
            questions.append(
                {
                    "message": case.message,
                    "path": str(path),
                    "decode": case.decode,
                    "encode": case.encode,
                    "options": case.options,
                }
            )
        hidden = ("SPARK_", "PYSPARK_", "PYTHONPATH")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        environment |= {"TZ": "UTC", "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run(
            [python, str(JVM_SCRIPT), jar],
            input=json.dumps(questions),
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
    answers = json.loads(done.stdout[done.stdout.index('{"version"') :])
    return answers["version"], {case.name: answer for case, answer in zip(asked, answers["answers"], strict=True)}


def differences(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Where two answers differ; of errors only that there is one, since their texts differ between versions."""

    def failing(value: Any) -> bool:
        return isinstance(value, dict) and "error" in value

    found = []
    if mine.get("schema") != theirs.get("schema"):
        found.append(f"schema {mine.get('schema')} != {theirs.get('schema')}")
    left = mine.get("rows", [mine.get("bytes")])
    right = theirs.get("rows", [theirs.get("bytes")])
    for one, other in zip(left, right, strict=True):
        if not (failing(one) and failing(other)) and one != other:
            found.append(f"{one} != {other}")
    return found


def fetch(folder: Path) -> tuple[str, str]:
    """A Python with pyspark 3.4.1, and the jar, in a folder."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", f"pyspark=={SPARK}", "setuptools"], check=True)
    jar = folder / JAR
    if not jar.exists():
        artifact = f"org.apache.spark:spark-protobuf_2.12:{SPARK}"
        subprocess.run(
            ["mvn", "-q", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"], check=True
        )
    return str(python), str(jar)


def main() -> int:
    """Record the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="an interpreter with a pyspark that pairs with the jar")
    parser.add_argument("--jar", help="a spark-protobuf jar")
    parser.add_argument("--fetch", type=Path, help="get both into this folder")
    options = parser.parse_args()
    pair = fetch(options.fetch) if options.fetch else (options.python, options.jar)
    version, answers = ask_jvm(*pair) if all(pair) else ("", {})
    bad = 0
    corpus = []
    for case in CASES:
        mine = ours(case, Rig(Engine.PYTHON))
        found = differences(mine, answers[case.name]) if case.name in answers else []
        if case.differs:
            corpus.append({"name": case.name, "source": f"ours on purpose: {case.differs}", **mine})
            bad += case.name in answers and not found
            continue
        bad += len(found)
        for each in found:
            print(f"{case.name}: {each}")
        source = f"jvm {version}" if case.name in answers else "read"
        corpus.append({"name": case.name, "source": source, **mine})
    if bad:
        print(f"{bad} differences; nothing is written")
        return 1
    CORPUS.parent.mkdir(exist_ok=True)
    CORPUS.write_text(json.dumps(corpus, indent=1, ensure_ascii=False) + "\n")
    confirmed = sum(each["source"].startswith("jvm") for each in corpus)
    print(f"{len(corpus)} cases, {confirmed} of them confirmed by Spark {version or '(not asked)'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
