"""The rules of the house hold for this tree, and each is seen to fail on a planted violation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import house_rules as rules

ROOT = Path(__file__).resolve().parents[3]
CONNECTORS = ["kafka", "kinesis", "pubsub"]
"""All connectors there are: a new one is added here, so that none is passed over in silence."""

Rule = Callable[[Path], list[str]]
IMPORT_RULES: tuple[Rule, ...] = (rules.sdks_imported_lazily, rules.light_on_executors, rules.cheap_import)


def plant(tree: Path, files: dict[str, str]) -> Path:
    """A small tree with these files, and empty `__init__.py` where a package needs one."""
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.relative_to(tree).parents:
            if folder.parts[:1] == ("connectors",):
                (tree / folder / "__init__.py").touch()
    return tree


@pytest.mark.parametrize("rule", rules.STATIC_RULES + IMPORT_RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps(rule: Rule) -> None:
    assert rule(ROOT) == []


def test_every_connector_is_known_and_has_its_modules() -> None:
    assert rules.connectors_of(ROOT) == CONNECTORS
    for connector in CONNECTORS:
        for folder in ("options", "client", "source", "sink"):
            assert (ROOT / "connectors" / connector / folder / "__init__.py").is_file()
        for module in ("datasource", "doctor"):
            assert (ROOT / "connectors" / connector / f"{module}.py").is_file()


def test_a_partition_reader_reaches_the_spool() -> None:
    # The walk that light_on_executors stands on must arrive where the rows are.
    assert any(name.startswith("connectors.spool.") for name in rules.executor_modules(ROOT, "pubsub"))


def test_exported_names_are_locked() -> None:
    code = "import connectors; print(*sorted(connectors.__all__)); print(*sorted(vars(connectors)))"
    run = subprocess.run((sys.executable, "-c", code), cwd=ROOT, check=True, capture_output=True, text=True)
    exported, present = (line.split() for line in run.stdout.splitlines())
    assert exported == ["__version__", "options", "register"]
    assert {name for name in present if not name.startswith("_")} == {"TYPE_CHECKING", "annotations", "register"}


LONG = "x = 1\n" * (rules.MODULE_LINES + 1)
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * rules.FUNCTION_LINES
SWALLOW = "try:\n    go()\nexcept {}:\n    {}\n"
LOOP = "while True:\n    try:\n        go()\n    except:\n        continue\n"
DYNAMIC = "import importlib\nimportlib.import_module('connectors.pubsub.client.client')\n"
SET_ITEM = "import sys\ndef test(monkeypatch):\n    monkeypatch.setitem(sys.modules, 'a', 1)\n"
VIOLATIONS: list[tuple[Rule, str, str]] = [
    (rules.layers, "connectors/kafka/datasource.py", "from connectors.pubsub import client\n"),
    (rules.layers, "connectors/kafka/datasource.py", "def f():\n    import connectors.pubsub.client.client\n"),
    (rules.layers, "connectors/kafka/datasource.py", "from ..pubsub import client\n"),
    (rules.layers, "connectors/kafka/datasource.py", "from connectors.testing import servers\n"),
    (rules.layers, "connectors/spool/store/local.py", DYNAMIC),
    (rules.arrows, "connectors/kafka/source/reader.py", "from connectors.kafka.sink import writer\n"),
    (rules.arrows, "connectors/kafka/offsets.py", "def f():\n    from connectors.kafka.options import source\n"),
    (rules.arrows, "connectors/spool/store/local.py", "from connectors.spool.ledger.records import decode\n"),
    (rules.no_circles, "connectors/core/retry.py", "from connectors.core.processes import pool\n"),
    (rules.small_folders, "connectors/core/many/m12.py", "x = 1\n"),
    (rules.sdks_only_in_client, "connectors/core/arrow.py", "import grpc\n"),
    (rules.sdks_only_in_client, "connectors/spool/store/local.py", "def f():\n    from google.cloud import storage\n"),
    (rules.sdks_only_in_client, "connectors/kafka/fetch.py", "__import__('confluent_kafka')\n"),
    (rules.command_line_only_in_cli, "connectors/pubsub/datasource.py", "def f():\n    from rich.table import Table\n"),
    (rules.command_line_only_in_cli, "connectors/cli/main.py", "import prometheus_client\n"),
    (rules.short_modules, "connectors/core/arrow.py", LONG),
    (rules.short_functions, "connectors/core/arrow.py", LONG_FUNCTION),
    (rules.nothing_swallowed, "connectors/core/arrow.py", SWALLOW.format("(OSError, BaseException) as e", "'why'")),
    (rules.nothing_swallowed, "tests/test_x.py", LOOP),
    (rules.nothing_swallowed, "bench/x.py", "with contextlib.suppress(Exception):\n    go()\n"),
    (rules.names_of_things, "connectors/core/arrow.py", "rows = [each for each in range(3)]\n"),
    (rules.names_of_things, "connectors/core/arrow.py", "def f(given: int) -> None: ...\n"),
    (rules.names_of_things, "connectors/core/arrow.py", "class A:\n    def __init__(self): self._found = 1\n"),
    (rules.no_mocks, "tests/test_x.py", "from unittest.mock import patch\n"),
    (rules.no_mocks, "tests/test_x.py", "import sys\nsys.modules['boto3'] = object()\n"),
    (rules.no_mocks, "tests/test_x.py", SET_ITEM),
    (rules.no_private_patches, "tests/test_x.py", "monkeypatch.setattr(watch, '_IDLE_SECONDS', 0.2)\n"),
    (rules.no_private_patches, "tests/test_x.py", "monkeypatch.delattr(worker, '_connections')\n"),
    (rules.no_private_patches, "tests/test_x.py", "monkeypatch.setitem(client._RETRIES, 'max_retries', 0)\n"),
    (rules.no_private_patches, "tests/test_x.py", "stream._lookup = Script()\n"),
    (rules.no_private_patches, "tests/test_x.py", "del stream._lookup\n"),
    (rules.no_private_patches, "tests/test_x.py", "spool._stores['ab'] = store\n"),
    (rules.python_by_helper, "connectors/a/b.py", "subprocess.run([sys.executable, 'x.py'])\n"),
    (rules.python_by_helper, "connectors/a/b.py", "command = (python, '-m', 'grpc_tools.protoc')\n"),
    (rules.python_by_helper, "connectors/a/b.py", "multiprocessing.get_context('spawn')\n"),
    (rules.python_by_helper, "connectors/a/b.py", "os.execv(path, words)\n"),
    (rules.spark_internals_in_one_module, "connectors/core/arrow.py", "from pyspark import accumulators\n"),
    (rules.spark_internals_in_one_module, "connectors/core/arrow.py", "import pyspark.sql.worker.utils\n"),
    (
        rules.spark_internals_in_one_module,
        "connectors/core/arrow.py",
        "def f():\n    from pyspark.serializers import read_int\n",
    ),
    (
        rules.spark_internals_in_one_module,
        "connectors/core/arrow.py",
        "if TYPE_CHECKING:\n    from pyspark.sql._typing import ColumnOrName\n",
    ),
    (rules.spark_internals_in_one_module, "connectors/core/arrow.py", "from py4j.protocol import Py4JJavaError\n"),
    (rules.spark_internals_in_one_module, "connectors/core/arrow.py", "import pyspark\npyspark.accumulators.clear()\n"),
    (rules.spark_internals_in_one_module, "connectors/core/arrow.py", "found = find_spec('pyspark.daemon')\n"),
    (rules.spark_internals_in_one_module, "connectors/core/arrow.py", "context = SparkContext._active_spark_context\n"),
    (rules.spark_internals_in_one_module, "connectors/core/arrow.py", "self._spark._jvm.System.exit(0)\n"),
    (rules.spark_internals_in_one_module, "connectors/core/arrow.py", "jvm = getattr(spark, '_conf', None)\n"),
    (rules.spark_internals_in_one_module, "connectors/core/arrow.py", "context.pythonExec = 'python3'\n"),
    (rules.spark_internals_in_one_module, "autoload/stand_in.py", "for name in ('_stackTrace',): ...\n"),
    (rules.plain_words, "connectors/core/a.py", "# Duplicates are struck\n# out.\n"),
    (rules.plain_words, "README.md", "Its log-in fails.\n"),
    (rules.plain_sentences, "docs/how-to/a.md", "It is renewed by\none that polls.\n"),
    (rules.plain_sentences, "connectors/core/a.py", "# So many portions\n# has a horizon.\n"),
    (rules.plain_sentences, "connectors/core/errors/codes.toml", 'meaning = "It has ten, of which two are new."\n'),
    (rules.no_machine_paths, "docs/a.md", "See /" + "root/notes.\n"),
    (rules.no_machine_paths, "tests/a.sh", "cd '/" + "home/me'\n"),
    (rules.no_registry_hosts, "requirements.lock", "--index-" + "url https://example.test/simple\n"),
    (rules.sdks_imported_lazily, "connectors/__init__.py", "import grpc\n"),
    (rules.sdks_imported_lazily, "connectors/kafka/datasource.py", "import grpc\n"),
    (rules.cheap_import, "connectors/__init__.py", "import pyarrow\n"),
    (rules.light_on_executors, "connectors/kafka/datasource.py", "import pydantic\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), VIOLATIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_violation_is_found(rule: Rule, path: str, text: str, tmp_path: Path) -> None:
    fake = {"pydantic.py": "", "prometheus_client.py": "", "pyarrow.py": "", "grpc.py": "", "google/auth.py": ""}
    base = {"connectors/pubsub/client/client.py": "", "connectors/kafka/client/factory.py": "import grpc\n"}
    base |= {f"connectors/core/many/m{number}.py": "" for number in range(rules.FOLDER_ENTRIES)}
    base |= {"connectors/core/processes/pool.py": "def f():\n    from connectors.core import retry\n"}
    tree = plant(tmp_path, fake | base)
    assert rule(tree) == []
    plant(tree, {path: text})
    rules.parse.cache_clear()
    assert rule(tree) != []


LAZY_READ = """
class Reader:
    def partitions(self):
        from connectors.kafka.plan import plan
        return plan()

    def read(self, partition):
        yield from self._rows(partition)

    def _rows(self, partition):
        from connectors.spool.segments.segment import slices
        return slices(partition)
"""


def test_import_inside_a_function_that_read_calls_counts_on_executors(tmp_path: Path) -> None:
    tree = plant(
        tmp_path,
        {
            "pydantic.py": "",
            "connectors/kafka/datasource.py": LAZY_READ,
            "connectors/kafka/plan.py": "import pydantic\n",
            "connectors/spool/segments/segment.py": "def slices(partition):\n    from connectors.core import arrow\n",
            "connectors/core/arrow.py": "",
        },
    )
    expected = [
        "connectors.core",
        "connectors.core.arrow",
        "connectors.kafka.datasource",
        "connectors.spool.segments.segment",
    ]
    assert rules.executor_modules(tree, "kafka") == expected
    assert rules.light_on_executors(tree) == []
    plant(tree, {"connectors/core/arrow.py": "import pydantic\n"})
    assert rules.light_on_executors(tree) != []


def test_module_that_cannot_be_imported_is_no_pass(tmp_path: Path) -> None:
    tree = plant(tmp_path, {"connectors/kafka/datasource.py": "import no_such_module\n"})
    with pytest.raises(ImportError, match="no_such_module"):
        rules.sdks_imported_lazily(tree)


def test_ignored_files_are_not_read_and_new_ones_are(tmp_path: Path) -> None:
    secret = "cd /" + "root/x\n"
    tree = plant(tmp_path, {".gitignore": "local/\n", "local/a.txt": secret})
    subprocess.run(("git", "init", "--quiet", str(tree)), check=True)
    assert rules.no_machine_paths(tree) == []
    plant(tree, {"new.txt": secret})
    assert rules.no_machine_paths(tree) == ["new.txt: /" + "root/"]


def test_private_names_of_a_class_are_its_own_to_set(tmp_path: Path) -> None:
    text = "class Clock:\n    def __init__(self):\n        self._seen = {}\n        self._seen[1] = 2\n"
    tree = plant(tmp_path, {"tests/test_x.py": text + "monkeypatch.setattr(socket, 'create_connection', refuse)\n"})
    assert rules.no_private_patches(tree) == []


def test_each_exception_for_a_private_patch_is_used_and_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    excepted = dict(rules.EXCEPTED_PATCHES)
    monkeypatch.setattr(rules, "EXCEPTED_PATCHES", {})
    found = rules.no_private_patches(ROOT)
    for (file, name), reason in excepted.items():
        assert any(each.startswith(f"{file}:") and each.endswith(f" {name}") for each in found), (file, name)
        assert reason
