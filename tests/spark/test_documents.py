"""The tutorial, the README and the examples are run as they stand, less what installs: that is for ./dev chaos docs."""

from __future__ import annotations

import ast
import asyncio
import base64
import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

from connectors import register
from connectors.avro import from_avro, to_avro
from connectors.cli.demo.job import QUICK_JAVA
from connectors.core.formats import missing_source
from connectors.testing.azure_schema_registry import AzureSchemaRegistry
from connectors.testing.kafka.mock import MockKafka
from connectors.testing.kinesis import start_server_process
from connectors.testing.pubsub import PubSubServer
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.servers.java import free_port
from tests.support.docs_facts import pages
from tests.support.documents import Block, blocks, environment, run
from tests.support.glue_rig import glue_server, header
from tests.support.kafka_rig import KafkaRig
from tests.support.protobuf_rig import compiled
from tests.support.waiting import wait_for
from tools.protos import build
from tools.side_environment import side_environment

ROOT = Path(__file__).parents[2]


# Two starts of Spark as a user makes them take two minutes; ./dev chaos docs runs the page too, with its install.
@pytest.mark.long
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/tutorial/first-stream.md").read_text(encoding="utf-8")
    page = page.replace("8085", str(free_port()))  # another test may have that one
    # Spark as a user starts it, but for the JVM's second compiler: half of what this takes is that.
    printed = run(page, tmp_path, environment(JDK_JAVA_OPTIONS=QUICK_JAVA), install=False)
    counts = printed["connectors spool inspect data/spool\n"]
    assert re.search(r"delivered\W+2,010\b", counts), counts
    assert re.search(r"dropped: duplicate\W+1,000\b", counts), counts
    assert "[SPOOL_ONLY_COPIES]" in page  # the page shows each warning of the pack that its steps cause
    warned = {code for text in printed.values() for code in re.findall(r"\[([A-Z]+(?:_[A-Z]+)+)\]", text)}
    assert warned == {"SPOOL_ONLY_COPIES"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.py", "publish.py", "stream.py"]


def test_a_format_whose_packages_are_missing_tells_the_driver_what_to_install(spark: SparkSession) -> None:
    spark.dataSource.register(missing_source("elsewhere", ["msgspec"], "kinesis"))
    wanted = (
        r"\[PACKAGES_MISSING\] These packages are not installed: msgspec .* "
        r"Install the extra kinesis: pip install .*\[kinesis\]"
    )
    with pytest.raises(AnalysisException, match=wanted):
        spark.readStream.format("elsewhere").load()
    with pytest.raises(AnalysisException, match=wanted):
        spark.range(1).write.format("elsewhere").mode("append").save()


def example(name: str) -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def emulator() -> Iterator[PubSubServer]:
    with PubSubServer() as server:
        yield server


@pytest.fixture(scope="module")
def spark(emulator: PubSubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session whose processes all know the server by the variable that Google's tools have for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", emulator.endpoint)
        patch.setenv("EXTERNAL_ID", "any")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .config("spark.driver.extraJavaOptions", QUICK_JAVA)
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "OFF")
            # The JVM of an earlier module lives on, and does not know the variables.
            .config("spark.executorEnv.EXTERNAL_ID", "any")
            .config("spark.executorEnv.PUBSUB_EMULATOR_HOST", emulator.endpoint)
            .getOrCreate()
        )
        yield session
        session.stop()


@pytest.mark.usefixtures("spark")
def test_the_python_of_the_readme_runs(
    emulator: PubSubServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its folders below /data are below a temporary one; its messages are orders."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    code = [one.text.replace("/data/", f"{tmp_path}/") for one in blocks(page) if one.language == "python"]
    stream, show, protobuf = code
    (printed,) = [one.text for one in blocks(page) if one.language == "text"]
    (descriptors,) = [path for path in build(tmp_path) if path.name == "orders.desc"]
    monkeypatch.chdir(descriptors.parent)
    names: dict[str, Any] = {}
    emulator.create_subscription("projects/shop/subscriptions/orders", "projects/shop/topics/orders")

    def run_until(expected: list[bytes]) -> None:
        exec(compile(stream, "README.md", "exec"), names)
        query = names["query"]
        try:
            wait_for(lambda: not query.isActive or payloads(tmp_path / "orders") == expected)
            assert query.exception() is None
        finally:
            query.stop()
        assert payloads(tmp_path / "orders") == expected

    emulator.publish("projects/shop/topics/orders", [b"order 1", b"order 2"])
    run_until([b"order 1", b"order 2"])
    exec(compile(show.replace("/data/", f"{tmp_path}/"), "README.md", "exec"), names)
    assert capsys.readouterr().out.strip() == printed.strip()
    emulator.publish("projects/shop/topics/orders", [b"order 3"])
    run_until([b"order 1", b"order 2", b"order 3"])  # it goes on where it was
    exec(compile(protobuf, "README.md", "exec"), names)
    assert "order_id" in names["orders"].schema["order"].dataType.names
    assert (tmp_path / "spool/orders").is_dir()


def test_the_python_of_the_front_page_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    (code,) = [one.text for one in blocks(page) if one.language == "python"]
    (tmp_path / "order.avsc").write_text(ORDER_AVRO)
    monkeypatch.chdir(tmp_path)
    register(spark)
    with MockKafka() as kafka:
        kafka.create_topic("orders", 1)
        messages = spark.createDataFrame([(b"\4o1",), (b"\4o2",)], "value BINARY").coalesce(1)
        writer = messages.write.format("kafka_py").option("kafka.bootstrap.servers", kafka.endpoint)
        writer.option("topic", "orders").mode("append").save()
        for before, after in {"broker:9092": kafka.endpoint, "/data/": f"{tmp_path}/"}.items():
            code = code.replace(before, after)
        exec(compile(code.replace(".start()", ".trigger(availableNow=True).start()"), "index.md", "exec"), {})
    assert sorted(row.order.id for row in spark.read.parquet(f"{tmp_path}/orders").collect()) == ["o1", "o2"]


def payloads(table: Path) -> list[bytes]:
    """The payloads of the files that the log of Spark's file sink names."""
    logs = [path for path in table.glob("_spark_metadata/*") if path.name.isdecimal()]
    lines = [json.loads(line) for path in logs for line in path.read_text().splitlines()[1:]]
    files = [urllib.request.url2pathname(urllib.parse.urlsplit(line["path"]).path) for line in lines]
    return sorted(payload for file in files for payload in pq.read_table(file)["payload"].to_pylist())


# Likewise two starts of Spark; the test before restarts the stream in one, and test_demo.py kills a JVM.
@pytest.mark.long
def test_the_stream_of_the_readme_goes_on_when_it_was_killed(emulator: PubSubServer, tmp_path: Path) -> None:
    """With the Spark that pip installs: its catalog is in memory, and a table of it is not found after a restart."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    code = next(one.text for one in blocks(page) if one.language == "python")
    script = tmp_path / "stream.py"
    script.write_text(
        code.replace("/data/", f"{tmp_path}/").replace('"orders"', '"again"') + "query.awaitTermination()\n"
    )
    emulator.create_subscription("projects/shop/subscriptions/again", "projects/shop/topics/again")
    settings = environment(PUBSUB_EMULATOR_HOST=emulator.endpoint, JDK_JAVA_OPTIONS=QUICK_JAVA)
    expected: list[bytes] = []
    for life in range(2):
        messages = [b"order %d" % (2 * life + number) for number in (1, 2)]
        emulator.publish("projects/shop/topics/again", messages)
        expected += messages
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, script], cwd=tmp_path, env=settings, stdout=log, stderr=log, start_new_session=True
            )
            try:
                wait_for(lambda: process.poll() is not None or payloads(tmp_path / "orders") == expected, 120)  # noqa: B023
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert payloads(tmp_path / "orders") == expected, (tmp_path / "log").read_text()[-3000:]


def test_the_parquet_block_of_the_how_to_keeps_a_repeated_batch_once(
    spark: SparkSession, emulator: PubSubServer, tmp_path: Path
) -> None:
    page = (ROOT / "docs/how-to/write-exactly-once.md").read_text(encoding="utf-8")
    publish, *job = [one.text for one in blocks(page) if "parquet_block" in one.run_by]
    changes = {"127.0.0.1:8085": emulator.endpoint, "/data/": f"{tmp_path}/", "shop": "once"}
    code = "\n".join(job)
    for before, after in changes.items():
        publish, code = publish.replace(before, after), code.replace(before, after)
    exec(compile(publish, "write-exactly-once.md", "exec"), {})
    for _ in range(2):
        exec(compile(code, "write-exactly-once.md", "exec"), {})
        shutil.rmtree(tmp_path / "checkpoints/orders/commits")
    rows = [bytes(row.payload) for row in spark.read.parquet(str(tmp_path / "orders")).collect()]
    assert sorted(rows) == sorted(b"order %d" % number for number in range(1000))


def test_the_kinesis_blocks_of_the_how_tos_read_the_copies_of_a_row_once(spark: SparkSession, tmp_path: Path) -> None:
    pages = [
        (ROOT / "docs/how-to" / name).read_text(encoding="utf-8")
        for name in ("kinesis-server.md", "write-exactly-once.md")
    ]
    code = [one.text for page in pages for one in blocks(page)]
    (fill,) = [text for text in code if "KinesisControl(" in text]
    (read,) = [text for text in code if "endpointUrl" in text]
    (drop,) = [text for text in code if "dropDuplicatesWithinWatermark" in text]
    register(spark)
    names: dict[str, Any] = {"spark": spark}
    with start_server_process() as server:
        exec(compile(fill.replace("127.0.0.1:4567", server.endpoint), "kinesis-server.md", "exec"), names)
        server.put("orders", [("customer-1", b'{"id": "%d", "cents": 5}' % (number // 2)) for number in range(20)])
        names["copies"] = eval(
            compile(read.replace("http://127.0.0.1:4567", server.url), "kinesis-server.md", "eval"), names
        )
        exec(compile(drop, "write-exactly-once.md", "exec"), names)
        sink = (
            names["orders"].where("id IS NOT NULL").writeStream.format("parquet").option("path", f"{tmp_path}/orders")
        )
        query = sink.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
    assert sorted(row.id for row in spark.read.parquet(f"{tmp_path}/orders").collect()) == [str(n) for n in range(10)]


def test_the_example_of_parquet_writes_a_repeated_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    assert example("pubsub_to_parquet").main(spark, tmp_path) == list(range(100))


def test_the_example_of_the_lakehouse_writes_a_repeated_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    assert example("lakehouse").main(spark, tmp_path) == [f"order {number:02d}" for number in range(100)]


def test_of_writers_that_race_for_a_batch_one_commits_it(tmp_path: Path) -> None:
    """As a driver that was given up but lives on, beside the one that has taken its place."""
    write = example("lakehouse").delta_writer(str(tmp_path / "orders"), "orders-v1")
    all_are_there = threading.Barrier(4)

    class Batch:
        def __init__(self, number: int) -> None:
            self.number = number

        def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
            all_are_there.wait()
            return pa.table({"batch": [self.number] * 5})

    def race(number: int) -> None:
        with contextlib.suppress(CommitFailedError):  # what ends the query of who comes second
            write(Batch(number), number)

    with ThreadPoolExecutor(4) as writers:
        for number in range(50):
            list(writers.map(race, [number] * 4))
    batches = DeltaTable(tmp_path / "orders").to_pyarrow_table()["batch"].to_pylist()
    assert sorted(batches) == [number for number in range(50) for _ in range(5)]


def test_a_compacted_delta_table_still_knows_the_last_batch(tmp_path: Path) -> None:
    class Batch:
        def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
            return pa.table({"number": [1]})

    write = example("lakehouse").delta_writer(str(tmp_path), "orders-v1")
    for number in range(5):
        write(Batch(), number)
    table = DeltaTable(tmp_path)
    table.optimize.compact()
    table.create_checkpoint()
    for path in sorted((tmp_path / "_delta_log").glob("*.json"))[:-1]:  # as retention of the log does
        path.unlink()
    write(Batch(), 4)
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 5
    write(Batch(), 5)
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 6


def test_the_page_on_the_lakehouse_shows_the_code_of_the_example() -> None:
    page = (ROOT / "docs/how-to/lakehouse.md").read_text(encoding="utf-8")
    (block,) = [one.text for one in blocks(page) if "def delta_writer" in one.text]
    imports, function = block.strip().split("\n\n\n")
    shown = (ROOT / "examples/lakehouse.py").read_text(encoding="utf-8")
    assert function in shown
    assert {*imports.split("\n")} - {*shown.split("\n")} == {"from pyspark.sql import DataFrame"}


def test_the_example_of_kafka_and_kinesis_takes_the_paid_orders_over(spark: SparkSession, tmp_path: Path) -> None:
    wanted = [{"partitionKey": "bob" if number % 2 else "ann", "order_id": f"o{number}"} for number in range(10)]
    assert example("kafka_to_kinesis").main(spark, tmp_path) == [
        row for row in wanted if row["order_id"] not in {"o0", "o5"}
    ]


def test_the_examples_with_state_give_windows_copies_and_a_join(spark: SparkSession, tmp_path: Path) -> None:
    found = example("stateful").main(spark, tmp_path)
    windows = sorted((row["start"], row["page"], row["visits"]) for row in found["windows"])
    assert windows == [(1_700_000_000 + start, "home", 10) for start in (0, 10, 20)]
    assert sorted(row["order"] for row in found["copies"]) == ["o1", "o2", "o3"]
    assert sorted((row["order"], row["amount"]) for row in found["paid"]) == [("o1", 10), ("o1", 10), ("o3", 30)]


@pytest.mark.long
def test_the_example_with_state_of_its_own_gives_totals_where_pandas_is() -> None:
    """Spark wants pandas for it, which is not part of the tests' environment; that of Spark Connect's client has it."""
    command = [str(side_environment("connect")), str(ROOT / "examples" / "stateful.py")]
    done = subprocess.run(
        command, env=environment(PYSPARK_PYTHON=command[0]), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [ast.literal_eval(line.strip()) for line in done.stdout.partition("totals\n")[2].splitlines()]
    assert {name: max(row["total"] for row in rows if row["customer"] == name) for name in ("ann", "bob")} == {
        "ann": 25.0,
        "bob": 7.0,
    }


def is_run_here(block: Block) -> bool:
    """Whether a block is run as those around it are: no mark on its page says otherwise."""
    return block.language in {"python", "sql"} and not block.run_by and not block.not_run


ORDER_AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'
PAGES = {str(page.path): page.text for page in pages() if any(is_run_here(one) for one in blocks(page.text))}
ORDER = (
    'syntax = "proto3"; package shop; message Order { int64 id = 1; Item item = 2; } message Item { string name = 1; }'
)


@pytest.fixture(scope="module")
def services(emulator: PubSubServer) -> Iterator[dict[str, str]]:
    """What the blocks of the pages name, by what is put in its place: the services, folders, ports and triggers."""
    emulator.create_subscription("projects/shop/subscriptions/pages", "projects/shop/topics/orders")
    emulator.create_subscription("projects/shop/subscriptions/orders-again", "projects/shop/topics/orders")
    emulator.create_topic("projects/my-shop/topics/orders")
    with start_server_process() as kinesis, MockKafka() as kafka:
        kinesis.create_stream("orders", shards=1)
        for topic in ("orders", "shouted", "totals", "orders-bad"):
            kafka.create_topic(topic, 1)
        own = f'.option("endpointUrl", "{kinesis.url}").option("awsAccessKey", "a").option("awsSecretKey", "b")'
        yield {
            '"subscriptionId", "orders")': '"subscriptionId", "pages").option("availableNowQuiet", "100ms")',
            "subscriptions/orders": "subscriptions/pages",
            '.option("region", "eu-west-1")': own,
            '.option("streamARN"': f'{own}.option("streamARN"',
            "broker:9092": kafka.endpoint,
            "port=9464": "port=0",
            "0.0.0.0": "127.0.0.1",
            "\nwatch(": "\nobserver = watch(",
            ".start()": ".trigger(availableNow=True).start()",
        }


@pytest.fixture(scope="module")
def inputs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows that have the columns of every source, and the descriptor sets that the pages name."""
    folder = tmp_path_factory.mktemp("inputs")
    columns = (
        "messageId STRING, payload BINARY, key BINARY, value BINARY, customer STRING, partitionKey STRING, time LONG"
    )
    order = bytearray(b"\x08\x07")
    spark.createDataFrame([("1", order, order, order, "ann", "ann", 1)], columns).write.parquet(str(folder / "rows"))
    (folder / "shop.desc").write_bytes(compiled(ORDER))
    return folder


def names_of(session: SparkSession, folder: Path) -> dict[str, Any]:
    """The names that the pages use and do not define."""
    table = session.read.parquet(str(folder / "rows"))
    table.createOrReplaceTempView("events")
    stream = session.readStream.schema(table.schema).parquet(str(folder / "rows"))
    error = session.sql("SELECT named_struct('error', 'a reason') AS order")
    return {
        "spark": session,
        "SparkSession": SparkSession,
        **dict.fromkeys(("events", "orders", "rows"), stream),
        "batch": table,
        "bad": table.crossJoin(error),
        "totals": stream.groupBy("value").count(),
    }


def run_block(block: Block, names: dict[str, Any], changes: dict[str, str]) -> None:
    """Run a block, and wait until its queries have ended without an error."""
    spark = names["spark"]
    code = f"\n{block.text}"
    for before, after in changes.items():
        code = code.replace(before, after)
    spark.streams.resetTerminated()
    if block.language == "sql":
        for statement in filter(str.strip, code.split(";\n")):
            spark.sql(statement).collect()
    else:
        exec(compile(code, "a page", "exec"), names)
    for query in spark.streams.active:
        assert query.awaitTermination(60)
    if ".start()" in block.text:
        assert spark.streams.awaitAnyTermination(60)  # raises what ended one


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run(
    name: str,
    spark: SparkSession,
    services: dict[str, str],
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As they stand and in their order, but for services, folders and ports; each query ends when all is read."""
    monkeypatch.chdir(inputs)
    register(spark)
    names = names_of(spark, inputs)
    if "with summarize_failure" in PAGES[name]:
        names["query"] = names["events"].writeStream.format("noop").trigger(availableNow=True).start()
    try:
        for one in blocks(PAGES[name]):
            if is_run_here(one):
                run_block(one, names, {**services, "/data/": f"{tmp_path}/", "/var/log/": f"{tmp_path}/"})
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.conf.unset("spark.sql.streaming.checkpointFileManagerClass")  # which a page sets
        if "observer" in names:
            names["observer"].close()


def test_every_example_is_run_by_a_test() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    names = {path.stem for path in (ROOT / "examples").glob("*.*")}
    assert {name for name in names if f'"{name}' not in text} == set()


def run_cells(name: str) -> dict[str, Any]:
    """Run a notebook from top to bottom, in a running event loop as Jupyter, which ./dev chaos docs runs itself."""
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}

    async def run_all() -> None:
        for number, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] == "code":
                assert not cell["outputs"], f"cell {number} has outputs, which differ from run to run"
                source = "".join(cell["source"]).replace("spark.stop()\n", "")  # the session is of these tests
                exec(compile(source, f"cell {number}", "exec"), names)

    asyncio.run(run_all())
    return names


@pytest.mark.long  # two starts of Spark
@pytest.mark.parametrize("name", ["first_stream", "tour"])
def test_a_notebook_ends_without_a_complaint(name: str, tmp_path: Path) -> None:
    """Its cells in a Python of its own, which lives on for a while, as a kernel does."""
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    command = [sys.executable, "-c", "\n".join([*cells, "import time", "time.sleep(6)"])]
    settings = environment(JDK_JAVA_OPTIONS=QUICK_JAVA)
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not re.findall(r".*refused.*|^FAIL .*|.*Traceback.*", done.stdout + done.stderr, re.MULTILINE)


@pytest.mark.usefixtures("spark")
def test_the_cells_of_the_notebook_run_in_their_order() -> None:
    names = run_cells("first_stream")
    assert names["orders"].select("messageId").distinct().count() == names["orders"].count() == 1000
    assert names["counts"].duplicates > 0


@pytest.mark.usefixtures("spark")
def test_the_cells_of_the_tour_show_what_its_text_says(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_cells("tour")
    assert (names["counts"].delivered, names["counts"].duplicates) == (2000, 1000)
    assert list(names["lag"].values()) == [*range(900, -1, -100)]
    assert [*names["plot"].data[0].y] == [*names["lag"].values()]
    printed = capsys.readouterr().out
    assert "records in Kafka: 1000 different orders: 1000\n" in printed
    assert "rows of the restarted query: 40\n" in printed
    assert re.findall(r"\|\s+(ann|bob|eve)\|\s+(\d+)\|", printed) == [("ann", "290"), ("bob", "250"), ("eve", "250")]
    assert "[OPTION_UNKNOWN]" in printed
    assert "Did you mean maxOffsetsPerTrigger?" in printed


def test_the_block_for_bad_records_stores_each_record_in_one_of_two_places(spark: SparkSession, tmp_path: Path) -> None:
    name = "test_the_block_for_bad_records_stores_each_record_in_one_of_two_places"
    page = (ROOT / "docs/how-to/bad-records.md").read_text(encoding="utf-8")
    (block,) = [one.text for one in blocks(page) if one.run_by.endswith(name)]
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    columns = "value BINARY, topic STRING, partition INT, offset BIGINT"
    with SchemaRegistryServer() as server:
        server.register("orders-value", text=json.dumps(schema), schema_type="AVRO")
        values = (b"\0\0\0\0\1\4o1", b"\0\0\0\0\1\x7f")
        records = [(bytearray(value), "orders", 0, offset) for offset, value in enumerate(values, 1)]
        spark.createDataFrame(records, columns).write.parquet(f"{tmp_path}/input")
        block = block.replace("/data/", f"{tmp_path}/").replace("https://registry:8081", server.address)
        block = block.replace(".start()", ".trigger(availableNow=True).start()")
        names: dict[str, Any] = {"events": spark.readStream.schema(columns).parquet(f"{tmp_path}/input")}
        exec(compile(block, "bad-records.md", "exec"), names)
        names["query"].awaitTermination()
    good, bad = (spark.read.parquet(f"{tmp_path}/{name}") for name in ("orders", "bad/orders"))
    assert [(row.offset, row.id) for row in good.collect()] == [(1, "o1")]
    assert [(row.offset, row.bad_record.schema) for row in bad.collect()] == [(2, "1")]


def test_bad_records_are_put_back_once(spark: SparkSession, kafka: KafkaRig, tmp_path: Path) -> None:
    register(spark)
    page = (ROOT / "docs/how-to/bad-records.md").read_text(encoding="utf-8")
    (block,) = [one.text for one in blocks(page) if one.run_by.endswith("test_bad_records_are_put_back_once")]
    schema = (
        "topic STRING, key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, "
        "bad_record STRUCT<code: STRING>"
    )
    kinds = ("SCHEMA_NOT_FOUND", "MALFORMED_AVRO_MESSAGE")
    records = [("orders", None, bytearray(kind.encode()), None, (kind,)) for kind in kinds]
    spark.createDataFrame(records, schema).write.parquet(f"{tmp_path}/bad/orders")
    kafka.topic(1, "orders")
    block = block.replace("/data/", f"{tmp_path}/").replace("broker:9092", kafka.broker.endpoint)
    for _ in range(2):
        exec(compile(block, "bad-records.md", "exec"), {"spark": spark})
    rows = kafka.batch(kafka.options("orders", kafka__isolation__level="read_committed"))
    assert [bytes(row["value"]) for row in rows] == [b"SCHEMA_NOT_FOUND"]


def test_the_job_in_the_manifest_for_kubernetes_stores_the_messages(
    spark: SparkSession, emulator: PubSubServer, tmp_path: Path
) -> None:
    """As it stands, but for its folders, its port, and that it ends when all is read."""
    manifest = yaml.safe_load_all((ROOT / "docker/kubernetes/orders.yaml").read_text(encoding="utf-8"))
    [job] = [each["data"]["orders.py"] for each in manifest if each["kind"] == "ConfigMap"]
    changes = {
        "/data/": f"{tmp_path}/",
        '"subscriptionId", "orders"': '"subscriptionId", "pods"',
        "port=9464": "port=0",
        ".start()": ".trigger(availableNow=True).start()",
    }
    for before, after in changes.items():
        assert before in job
        job = job.replace(before, after)
    emulator.create_subscription("projects/shop/subscriptions/pods", "projects/shop/topics/pods")
    emulator.publish("projects/shop/topics/pods", [b"order 1", b"order 2"])
    names: dict[str, Any] = {}
    exec(compile(job, "orders.py", "exec"), names)
    names["observer"].close()
    rows = spark.read.parquet(str(tmp_path / "orders")).collect()
    assert sorted(bytes(row.payload) for row in rows) == [b"order 1", b"order 2"]


def test_the_page_on_registries_decodes_and_encodes(spark: SparkSession, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/schema-registry.md").read_text(encoding="utf-8")
    *_, first, second = [one.text for one in blocks(page) if "test_the_page_on_registries_decodes" in one.run_by]
    (descriptors,) = [path for path in build(tmp_path) if path.name == "orders.desc"]
    order = compiled('syntax = "proto3"; message Order { string id = 1; double amount = 2; }')
    frame = frame_of(1, b"\x0a\x02o1")
    with SchemaRegistryServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGISTRY_KEY_AND_SECRET", "key:secret")
        for subject in ("orders-value", "copies-value"):
            server.register(subject, order, "main.proto")
        names: dict[str, Any] = {"events": spark.createDataFrame([(bytearray(frame),)], "value BINARY")}
        address = "https://psrc-abc12.eu-west-1.aws.confluent.cloud"
        assert address in first
        exec(compile(first.replace(address, server.address), "schema-registry.md", "exec"), names)
        assert [(row.id, row.amount) for row in names["orders"].collect()] == [("o1", None)]
        assert [bytes(row.value) for row in names["frames"].collect()] == [frame_of(2, b"\x0a\x02o1")]
        assert set(server.authorizations) == {"Basic " + base64.b64encode(b"key:secret").decode()}
    exec(compile(second.replace("orders.desc", str(descriptors)), "schema-registry.md", "exec"), names)
    assert "order_id" in names["orders"].schema["order"].dataType.names


def test_the_page_on_registries_reads_and_writes_avro(spark: SparkSession) -> None:
    page = (ROOT / "docs/how-to/schema-registry.md").read_text(encoding="utf-8")
    tried, read, write, moved = [one.text for one in blocks(page) if "reads_and_writes_avro" in one.run_by]
    printed = next(one.text for one in blocks(page) if one.language == "text")
    field = {"name": "id", "type": "string"}
    amount = {"name": "amount", "type": "double", "default": 0}
    versions = [{"type": "record", "name": "Order", "fields": fields} for fields in ([field], [field, amount])]
    messages = [b"\0\0\0\0\1\4o1", b"\0\0\0\0\2\4o2" + struct.pack("<d", 1.5), b"no frame"]
    address = "https://psrc-abc12.eu-west-1.aws.confluent.cloud"
    with SchemaRegistryServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGISTRY_KEY_AND_SECRET", "key:secret")
        with SchemaRegistryServer() as own, contextlib.redirect_stdout(io.StringIO()) as shown:
            exec(compile(tried.replace("http://127.0.0.1:8081", own.address), "schema-registry.md", "exec"), {})
        assert shown.getvalue().strip() == printed.strip()
        for version in versions:
            server.register("orders-value", text=json.dumps(version), schema_type="AVRO")
        names: dict[str, Any] = {"events": spark.createDataFrame([(one,) for one in messages], "value BINARY")}
        for text in (read, write):
            exec(compile(text.replace(address, server.address), "schema-registry.md", "exec"), names)
        assert [tuple(row) for row in names["orders"].collect()] == [("o1", 0.0), ("o2", 1.5)]
        assert [bytes(row.value) for row in names["bad"].collect()] == [b"no frame"]
        written = [bytes(row.value) for row in names["frames"].collect()]
        assert written == [
            b"\0\0\0\0\3\4" + one + struct.pack("<d", value) for one, value in ((b"o1", 0), (b"o2", 1.5))
        ]
        assert [path for path in server.requests if "POST" in path] == ["POST /subjects/copies-value/versions"]
        names["events"] = spark.createDataFrame([(one,) for one in messages[:2]], "value BINARY")
        exec(compile(moved.replace(address, server.address), "schema-registry.md", "exec"), names)
        assert [bytes(row.value[:8]) for row in names["frames"].collect()] == [b"\0\0\0\0\2\4o1", b"\0\0\0\0\2\4o2"]
        assert set(server.authorizations) == {"Basic " + base64.b64encode(b"key:secret").decode()}


def test_the_block_on_registries_for_agents_decodes_and_encodes(spark: SparkSession) -> None:
    page = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    [text] = [one.text for one in blocks(page) if "for_agents_decodes_and_encodes" in one.run_by]
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    click = {"type": "object", "properties": {"page": {"type": "string"}}}
    messages = [(b"\0\0\0\0\2" + b'{"page": "home"}', b"\0\0\0\0\1\4o1")]
    with SchemaRegistryServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGISTRY_KEY_AND_SECRET", "key:secret")
        server.register("orders-value", text=json.dumps(order), schema_type="AVRO")
        server.register("clicks-value", text=json.dumps(click), schema_type="JSON")
        names: dict[str, Any] = {"events": spark.createDataFrame(messages, "key BINARY, value BINARY")}
        exec(compile(text.replace("https://registry:8081", server.address), "AGENTS.md", "exec"), names)
        assert [row.order.id for row in names["orders"].collect()] == ["o1"]
        assert [row.click.page for row in names["clicks"].collect()] == ["home"]
        assert [bytes(row.value) for row in names["frames"].collect()] == [messages[0][1]]


def test_the_page_on_registries_reads_and_writes_frames_of_glue(spark: SparkSession) -> None:
    page = (ROOT / "docs/how-to/schema-registry.md").read_text(encoding="utf-8")
    [text] = [one.text for one in blocks(page) if "frames_of_glue" in one.run_by]
    order = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]})
    parcel = 'syntax = "proto3"; package shop; message Parcel { string id = 1; }'
    with glue_server() as server:
        server.create()
        first, second = (server.register(name, order) for name in ("orders", "copies"))
        parcels = server.register("parcels", parcel, "PROTOBUF")
        orders = [(header(first) + b"\4o1",), (b"no frame",)]
        parcel_frame = header(parcels) + b"\0\x0a\2p1"
        names: dict[str, Any] = {
            "events": spark.createDataFrame(orders, "value BINARY"),
            "parcel_events": spark.createDataFrame([(parcel_frame,)], "value BINARY"),
        }
        given = 'glue = {"type": "glue", "region": "eu-west-1", "registryName": "shop"}'
        assert given in text
        exec(compile(text.replace(given, f"glue = {server.options!r}"), "schema-registry.md", "exec"), names)
        assert [bytes(row.value) for row in names["frames"].collect()] == [header(second, 5) + zlib.compress(b"\4o1")]
        assert [row.order.error is None for row in names["orders"].collect()] == [True, False]
        assert [bytes(row.value) for row in names["parcel_frames"].collect()] == [parcel_frame]
        server.drop()


def test_the_page_on_registries_reads_and_writes_messages_of_azure(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/how-to/schema-registry.md").read_text(encoding="utf-8")
    [text] = [one.text for one in blocks(page) if "messages_of_azure" in one.run_by]
    order = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]})
    service = AzureSchemaRegistry("shop")
    first = service.register("shop", "shop.Order", order)
    second = service.register("shop", "shop.Order", order.replace("}]", ', "default": ""}]'))
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "secret")
    with SchemaRegistryServer(interface=service) as server:
        server.clients = {"APPLICATION": "secret"}
        for given, ours in (
            ('"fullyQualifiedNamespace": "mynamespace.servicebus.windows.net"', f'"address": "{server.address}"'),
            ('"tenantId": "TENANT"', f'"bearer.auth.issuer.endpoint.url": "{server.token_url}"'),
        ):
            assert given in text
            text = text.replace(given, ours)
        header = [("content-type", f"avro/binary+{first}".encode())]
        rows = [(b"\4o1", header), (b"\0\0\0\0" + second.encode() + b"\4o2", None), (None, header)]
        kind = "value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>"
        names: dict[str, Any] = {
            "events": spark.createDataFrame(rows, kind),
            "from_avro": from_avro,
            "to_avro": to_avro,
        }
        exec(compile(text, "schema-registry.md", "exec"), names)
        assert [row.order and row.order.id for row in names["orders"].collect()] == ["o1", "o2", None]
        written = Row(key="content-type", value=bytearray(f"avro/binary+{second}".encode()))
        assert [(row.value, row.headers) for row in names["frames"].collect()] == [
            (bytearray(b"\4o1"), [written]),
            (bytearray(b"\4o2"), [written]),
            (None, None),
        ]


def frame_of(schema: int, message: bytes) -> bytes:
    """A message of the first type of a schema, as Confluent's serializers frame it."""
    return b"\0" + schema.to_bytes(4, "big") + b"\0" + message
