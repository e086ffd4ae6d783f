"""The names of datasets and the events of OpenLineage, held against its published schema."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema_rs
import pytest

from connectors.core.errors import OptionError
from connectors.core.processes.spark import StreamPlan
from connectors.observe import watch
from connectors.observe.lineage import Endpoint, Lineage
from tests.support.observed import session

VENDORED = Path(__file__).parents[2] / "vendored/openlineage"
SCHEMA = json.loads((VENDORED / "OpenLineage.json").read_text())
FACET = json.loads((VENDORED / "JobTypeJobFacet.json").read_text())
EVENTS = jsonschema_rs.validator_for(SCHEMA, validate_formats=True)
FACETS = jsonschema_rs.validator_for(
    FACET, registry=jsonschema_rs.Registry([(schema["$id"], schema) for schema in (SCHEMA, FACET)])
)
KAFKA = {"kafka.bootstrap.servers": "b1:9093,b2:9093"}
SERVERS = "kafka.bootstrap.servers"
SASL = {
    **KAFKA,
    "subscribe": "a",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="ann" password="hush-hush";',
}
PUBSUB = {"projectId": "shop", "spoolLocation": "/data/spool"}
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
AWS = {"region": "eu-west-1"}
QUERY = {"query": "b0d7e8aa-6f0b-4f3f-9b57-1d6c0ee0a7c1", "run": str(uuid4()), "name": "orders"}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "PUBSUB_EMULATOR_HOST", "OPENLINEAGE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def written(
    folder: Path, act: Callable[[Lineage], None], environ: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The events that are written to a file, each of which is of the schema."""
    lineage = Lineage(folder / "events.jsonl", environ or {})
    act(lineage)
    lineage.close()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for event in events:
        EVENTS.validate(event)
        FACETS.validate(event["job"]["facets"])
    return events


def named(datasets: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(dataset["namespace"], dataset["name"]) for dataset in datasets]


def progress(*sources: dict[str, Any], sink: str = "ForeachBatchSink") -> dict[str, Any]:
    return {"runId": QUERY["run"], "sources": list(sources), "sink": {"description": sink}}


def offset(*topics: str) -> str:
    return json.dumps({**{topic: {"0": 4} for topic in topics}, "v": 1})


@pytest.mark.parametrize(
    ("source", "options", "names"),
    [
        ("kafka_py", {**KAFKA, "subscribe": "b, a"}, [("kafka://b1:9093", "a"), ("kafka://b1:9093", "b")]),
        ("kafka_py", {**KAFKA, "assign": '{"a":[0,1]}'}, [("kafka://b1:9093", "a")]),
        ("kafka_py", {SERVERS: "SASL_SSL://b1:9093", "subscribe": "a"}, [("kafka://b1:9093", "a")]),
        ("kafka_py", {SERVERS: "b1", "subscribe": "a"}, [("kafka://b1:9092", "a")]),
        ("kafka_py", {SERVERS: "[::1]:9093", "subscribe": "a"}, [("kafka://[::1]:9093", "a")]),
        ("kafka_py", {SERVERS: "[::1]", "subscribe": "a"}, [("kafka://[::1]:9092", "a")]),
        ("kafka_py", {**KAFKA, "subscribePattern": "orders.*"}, []),
        ("kafka_py", SASL, [("kafka://b1:9093", "a")]),
        ("kafka_py", {**KAFKA, "subscribe": "a", "no.such.option": "1"}, []),
        ("pubsub", {**PUBSUB, "subscriptionId": "s"}, [("pubsub", "subscription:shop:s")]),
        (
            "pubsub",
            {"spoolLocation": "/s", "subscriptionId": "projects/b/subscriptions/t,projects/b/subscriptions/s"},
            [("pubsub", "subscription:b:s"), ("pubsub", "subscription:b:t")],
        ),
        (
            "pubsub",
            {**PUBSUB, "subscriptionId": "s", "topicId": "t"},
            [("pubsub", "subscription:shop:s"), ("pubsub", "topic:shop:t")],
        ),
        ("kinesis", {**AWS, "streamName": "orders"}, [("kinesis://kinesis.eu-west-1.amazonaws.com", "orders")]),
        ("kinesis", {"streamName": ARN}, [("kinesis://kinesis.eu-west-1.amazonaws.com", "orders")]),
        (
            "kinesis",
            {"streamName": "b,a", "region": "cn-north-1"},
            [("kinesis://kinesis.cn-north-1.amazonaws.com.cn", name) for name in "ab"],
        ),
        ("kinesis", {"endpointUrl": "http://localhost:4566", "streamName": "a"}, [("kinesis://localhost:4566", "a")]),
        ("kinesis", {"endpointUrl": "https://k.internal", "streamName": "a"}, [("kinesis://k.internal", "a")]),
        ("kinesis", {"streamName": "a"}, []),
        ("rate", {}, []),
        ("", {}, []),
    ],
)
def test_the_inputs_are_the_names_that_openlineage_knows(
    source: str, options: dict[str, str], names: list[tuple[str, str]], tmp_path: Path
) -> None:
    plan = StreamPlan(((source, options),))
    [event] = written(tmp_path, lambda lineage: lineage.start(0, QUERY, plan))
    assert named(event["inputs"]) == names
    assert event["outputs"] == []
    assert "hush-hush" not in json.dumps(event)


@pytest.mark.parametrize(
    ("sink", "options", "names"),
    [
        ("kafka_py", {**KAFKA, "topic": "out", "checkpointLocation": "/c"}, [("kafka://b1:9093", "out")]),
        ("kafka_py", KAFKA, []),
        ("pubsub", {"projectId": "shop", "topicId": "out"}, [("pubsub", "topic:shop:out")]),
        ("pubsub", {"topicId": "projects/b/topics/out"}, [("pubsub", "topic:b:out")]),
        ("pubsub", {"projectId": "shop"}, []),
        ("kinesis", {**AWS, "streamName": "out"}, [("kinesis://kinesis.eu-west-1.amazonaws.com", "out")]),
        ("kinesis", AWS, []),
        ("FileSink[file:/data/orders]", {"path": "/data/orders"}, [("file", "/data/orders")]),
        ("DeltaSink[s3a://lake/silver/orders/]", {}, [("s3://lake", "silver/orders")]),
        ("DeltaSink[s3a://KEY:hush-hush@lake/orders]", {}, [("s3://lake", "orders")]),
        ("DeltaSink[gs://lake/orders]", {}, [("gs://lake", "orders")]),
        (
            "DeltaSink[abfss://silver@acme.dfs.core.windows.net/orders]",
            {},
            [("abfss://silver@acme.dfs.core.windows.net", "orders")],
        ),
        ("FileSink[hdfs://name:8020/data/orders]", {}, [("hdfs://name:8020", "/data/orders")]),
        ("ForeachBatchSink", {}, []),
        ("org.apache.spark.sql.execution.streaming.ConsoleTable$@1f", {}, []),
    ],
)
def test_the_outputs_are_the_names_that_openlineage_knows(
    sink: str, options: dict[str, str], names: list[tuple[str, str]], tmp_path: Path
) -> None:
    [event] = written(tmp_path, lambda lineage: lineage.start(0, QUERY, StreamPlan((), (sink, options))))
    assert (event["inputs"], named(event["outputs"])) == ([], names)
    assert "hush-hush" not in json.dumps(event)


@pytest.mark.parametrize(("failed", "last"), [(False, "COMPLETE"), (True, "FAIL")])
def test_a_run_has_a_start_and_an_end_under_the_name_of_its_query(failed: bool, last: str, tmp_path: Path) -> None:
    plan = StreamPlan((("kafka_py", {**KAFKA, "subscribe": "a"}),))

    def act(lineage: Lineage) -> None:
        lineage.start(1_000, QUERY, plan)
        lineage.start(1_500, QUERY, plan)  # seen twice: at its start, and among those that run
        lineage.progress(2_000, progress({"endOffset": offset("a")}))
        lineage.end(3_000, QUERY["run"], failed=failed)
        lineage.end(4_000, QUERY["run"], failed=failed)

    first, end = written(tmp_path, act, {"OPENLINEAGE_NAMESPACE": "shop", "OPENLINEAGE_API_KEY": "hush-hush"})
    assert [first["eventType"], end["eventType"]] == ["START", last]
    assert [first["eventTime"], end["eventTime"]] == ["1970-01-01T00:00:01.000+00:00", "1970-01-01T00:00:03.000+00:00"]
    assert first["run"] == end["run"] == {"runId": QUERY["run"]}
    assert (first["job"]["namespace"], first["job"]["name"]) == ("shop", "orders")
    assert first["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert first["inputs"] == end["inputs"] != []
    assert "hush-hush" not in json.dumps([first, end])


def test_a_query_without_a_name_is_a_job_by_its_id(tmp_path: Path) -> None:
    [event] = written(tmp_path, lambda lineage: lineage.start(0, {**QUERY, "name": ""}, StreamPlan()))
    assert (event["job"]["namespace"], event["job"]["name"]) == ("default", QUERY["query"])


def test_topics_of_a_pattern_and_folders_come_with_the_batches_that_show_them(tmp_path: Path) -> None:
    plan = StreamPlan((("kafka_py", {**KAFKA, "subscribePattern": "orders.*"}), ("", {})))

    def act(lineage: Lineage) -> None:
        lineage.start(0, QUERY, plan)
        files = {"description": "FileStreamSource[file:/data/in]", "endOffset": '{"logOffset":0}'}
        for topics in ((), ("orders-1",), ("orders-1",), ("orders-1", "orders-2")):
            end = offset(*topics) if topics else None
            lineage.progress(0, progress({"endOffset": end}, files, sink="DeltaSink[file:/data/out]"))
        lineage.end(0, QUERY["run"], failed=False)

    events = written(tmp_path, act)
    folder = ("file", "/data/in")
    assert [(event["eventType"], named(event["inputs"])) for event in events] == [
        ("START", []),
        ("RUNNING", [folder]),
        ("RUNNING", [folder, ("kafka://b1:9093", "orders-1")]),
        ("RUNNING", [folder, ("kafka://b1:9093", "orders-1"), ("kafka://b1:9093", "orders-2")]),
        ("COMPLETE", [folder, ("kafka://b1:9093", "orders-1"), ("kafka://b1:9093", "orders-2")]),
    ]
    assert [named(event["outputs"]) for event in events] == [[], *[[("file", "/data/out")]] * 4]


def test_a_session_that_shows_no_plan_is_a_warning_and_its_runs_have_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [event] = written(tmp_path, lambda lineage: lineage.start(0, QUERY, None))
    assert (event["eventType"], event["inputs"], event["outputs"]) == ("START", [], [])
    assert "[OBSERVE_LINEAGE]" in caplog.text


def test_a_session_of_spark_connect_is_refused() -> None:
    with pytest.raises(OptionError, match=r"OBSERVE_LINEAGE.*Spark Connect"):
        watch(session(), lineage="/no/folder/events.jsonl")


class Service:
    """Takes events; answers with the statuses in turn, then with 201."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.events: list[dict[str, Any]] = []
        self.url = ""


@contextmanager
def serving(*statuses: int) -> Iterator[Service]:
    service = Service(*statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = service.statuses.pop(0) if service.statuses else 201
            service.paths.append(self.path)
            service.keys.append(self.headers["Authorization"])
            if status < 300:
                service.events.append(body)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{service.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - as above

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        service.url = f"http://127.0.0.1:{server.server_port}"
        yield service
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("path", "posted"), [("", "/api/v1/lineage"), ("/", "/api/v1/lineage"), ("/a/b", "/a/b")])
def test_a_service_gets_the_events_with_the_key_of_the_environment(path: str, posted: str) -> None:
    with serving() as service:
        lineage = Lineage(service.url + path, {"OPENLINEAGE_API_KEY": "hush-hush"})
        lineage.start(0, QUERY, StreamPlan())
        lineage.end(0, QUERY["run"], failed=False)
        lineage.close()
    assert [event["eventType"] for event in service.events] == ["START", "COMPLETE"]
    assert (service.paths, service.keys) == ([posted] * 2, ["Bearer hush-hush"] * 2)
    for event in service.events:
        EVENTS.validate(event)


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_what_a_service_does_not_take_is_sent_again_later_in_order(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    with serving(status) as service:
        endpoint = Endpoint(service.url, "", lambda: now)
        endpoint.write({"n": 1})
        endpoint.write({"n": 2})  # soon after: not tried
        assert (len(service.paths), service.events) == (1, [])
        assert f"[OBSERVE_LINEAGE] {service.url.removeprefix('http://')} takes no events: HTTP status" in caplog.text
        now = 30.0
        endpoint.write({"n": 3})
        endpoint.close()
    assert service.events == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert "lost" not in caplog.text


@pytest.mark.parametrize("status", [400, 401, 422, 302, 307])
def test_what_a_service_refuses_is_a_warning_and_later_events_are_sent(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(status) as service:
        endpoint = Endpoint(service.url, "hush-hush")
        endpoint.write({"n": 1})
        endpoint.write({"n": 2})
        endpoint.close()
    assert service.events == [{"n": 2}]
    assert service.paths == ["/api/v1/lineage"] * 2, "a redirect is not followed: the key would go along"
    assert f"refuses an event: HTTP status {status}" in caplog.text
    assert "hush-hush" not in caplog.text


def test_a_service_that_is_not_there_is_a_warning_and_closing_tells_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as service:
        url = service.url
    endpoint = Endpoint(url, "hush-hush")
    endpoint.write({"n": 1})
    endpoint.close()
    assert "Connection refused" in caplog.text
    assert "1 events are lost" in caplog.text
    assert "hush-hush" not in caplog.text


@pytest.mark.parametrize(
    "url",
    ["http://", "https:", "http://ann:hush-hush@host", "http://host:x", "http://host:70000", "http://[", "http://h#x"],
)
def test_what_is_no_url_of_a_service_is_a_named_error_that_does_not_repeat_it(url: str) -> None:
    with pytest.raises(OptionError, match="OBSERVE_LINEAGE") as error:
        Lineage(url, {})
    assert "hush-hush" not in str(error.value)


def test_a_key_does_not_go_over_plain_http_to_another_machine() -> None:
    with pytest.raises(OptionError, match="plain http to marquez"):
        Lineage("http://marquez:5000", {"OPENLINEAGE_API_KEY": "hush-hush"})
    Lineage("http://marquez:5000", {}).close()
    Lineage("https://marquez:5000", {"OPENLINEAGE_API_KEY": "hush-hush"}).close()
