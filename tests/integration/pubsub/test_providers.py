"""Tokens of Google from a user's code, over TLS; and what never shows of them.

Calls by TLS run in a process of their own, because gRPC reads the variable for root certificates once.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from connectors.core.errors import OptionError
from connectors.core.offsets import SENTINEL
from connectors.pubsub.datasource import PubSubDataSource
from connectors.pubsub.options.sink import parse_write_options
from connectors.pubsub.options.source import parse_read_options
from connectors.testing.pubsub import PubSubServer
from tests.servers.certificates import make_certificates
from tests.support.providers import CANARY, calls
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import TaskWorkers

PROJECT = "projects/shop"
MODULE = "tests.support.providers"
ROOT = Path(__file__).parents[3]
CALLS = """
import logging, os, sys, time
logging.basicConfig(level=logging.DEBUG)
from connectors.core.errors import ConnectorError
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.options.source import parse_read_options
raw = {"projectid": "shop", "subscriptionid": "orders", "spoollocation": "/s", "retryTimeout": "100ms"}
raw |= {"endpoint": sys.argv[1], "credentialprovider": sys.argv[2]}
options = parse_read_options(raw, {})
try:
    with PubSubClient(options.transport, options.credentials, outage_rule=options.outage_rule) as client:
        for _ in range(3):
            client.delete_subscription(options.subscription)
            time.sleep(float(sys.argv[3]))
except ConnectorError as error:
    print(f"{type(error).__name__} {error}")
"""


class Service(grpc.GenericRpcHandler):
    """Answers each call with an empty message, and records its token."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.tokens += [str(value) for key, value in details.invocation_metadata if key == "authorization"]
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture
def service(certificates: Path) -> Iterator[tuple[Service, str]]:
    handler = Service()
    with futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, [handler], options=[("grpc.so_reuseport", 0)])
        port = server.add_secure_port("127.0.0.1:0", server_tls(certificates))
        server.start()
        yield handler, f"https://127.0.0.1:{port}"
        server.stop(None).wait()


def server_tls(certificates: Path) -> grpc.ServerCredentials:
    pair = ((certificates / "server.key").read_bytes(), (certificates / "server.pem").read_bytes())
    return grpc.ssl_server_credentials([pair])


def call(endpoint: str, certificates: Path, provider: str, pause: str = "0") -> tuple[str, str]:
    """Make three calls; return what a process prints of its error, and its log."""
    return run(CALLS, certificates, endpoint, f"{MODULE}:{provider}", pause)


def run(program: str, certificates: Path, *arguments: str) -> tuple[str, str]:
    """Run a program of Python; return what it prints, without a secret, and its log."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificates / "ca.pem"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert CANARY not in done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("provider", ["token_dict", "google_credentials"])
def test_a_token_is_asked_for_once_and_again_before_it_expires(
    service: tuple[Service, str], certificates: Path, tmp_path: Path, provider: str
) -> None:
    handler, endpoint = service
    log = tmp_path / "calls"
    assert call(endpoint, certificates, f"{provider}?log={log}")[0] == ""
    assert handler.tokens == [f"Bearer {CANARY}-1"] * 3
    # Google's library takes a token for expired 225 seconds before it is.
    assert call(endpoint, certificates, f"{provider}?log={log}&seconds=226", "1.1")[0] == ""
    assert len(set(handler.tokens[3:])) == 3


def test_a_provider_that_fails_at_once_is_an_error_of_its_own(service: tuple[Service, str], certificates: Path) -> None:
    error, _ = call(service[1], certificates, "failing")
    assert error.startswith("ServiceUnavailableError [CREDENTIAL_PROVIDER_FAILED] The credential provider failed: ")
    assert f"credentialProvider={MODULE}:failing" in error
    error, _ = call(service[1], certificates, "failing?kind=TypeError")
    assert error.startswith("CredentialsError [CREDENTIAL_PROVIDER_FAILED] ")
    for provider in ("nothing", "only_text", "no_secret_key"):
        error, _ = call(service[1], certificates, provider)
        assert error.startswith("OptionError [CREDENTIAL_PROVIDER] ")
        assert "token and expires_at" in error
    assert service[0].tokens == []


def test_a_provider_that_fails_later_is_named_and_its_text_is_not_logged(
    service: tuple[Service, str], certificates: Path, tmp_path: Path
) -> None:
    error, _ = call(service[1], certificates, f"failing_token?log={tmp_path / 'calls'}&good=2", "0.2")
    assert error.startswith("ServiceUnavailableError [PUBSUB_TOKEN_UNAVAILABLE] ")
    assert "[CREDENTIAL_PROVIDER_FAILED] The credential provider failed: RuntimeError at providers.py:" in error


# Fetchers, tasks and the options


def test_reader_fetchers_and_tasks_ask_the_provider_and_its_secrets_show_nowhere(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(certificates / "ca.pem"))
    log = tmp_path / "calls"
    provider = f"{MODULE}:token_dict?log={log}"
    workers = TaskWorkers(1)
    with PubSubServer(tls=server_tls(certificates)) as server:
        rig = PubSubRig(server, f"https://{server.endpoint}", tmp_path, workers)
        rig.publish(20)
        with rig.query({"credentialProvider": provider}) as query:
            batch = query.run_batch()
            shown = list(query.reader.partitions(SENTINEL, batch.ends[0]))
            fetchers = rig.fetchers(query)
            for pid in [query.reader.pid, *fetchers]:
                shown += [Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/environ").read_bytes()]
            rig.run_until_all(query)
            assert {str(query.reader.pid), *map(str, fetchers)} <= {*calls(log)}
        source = PubSubDataSource(rig.options(credentialProvider=provider))
        shown += [pickle.dumps(source), repr(vars(source)).encode(), pickle.dumps(source.streamReader(source.schema()))]
        rig.assert_each_once()
        assert {token[: len(CANARY) + 7] for token in server.authorizations} == {f"Bearer {CANARY}"}
    workers.close()
    shown += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    shown += [text.encode() for text in capfd.readouterr()]
    assert not [text for text in shown if CANARY.encode() in text]


def test_a_task_that_writes_asks_the_provider(certificates: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    with PubSubServer(tls=server_tls(certificates)) as server:
        server.create_subscription(f"{PROJECT}/subscriptions/orders", f"{PROJECT}/topics/orders")
        options = {"topicId": f"{PROJECT}/topics/orders", "endpoint": f"https://{server.endpoint}"}
        options["credentialProvider"] = f"{MODULE}:token_dict?log={log}"
        planned = PubSubDataSource(options).writer(StructType([StructField("data", BinaryType())]), overwrite=False)
        pickled = pickle.dumps(planned)
        assert CANARY.encode() not in pickled
        (tmp_path / "writer").write_bytes(pickled)
        program = (
            "import pickle, sys, pyarrow as pa; from pathlib import Path\n"
            "writer = pickle.loads(Path(sys.argv[1]).read_bytes())\n"
            "writer.write(iter([pa.RecordBatch.from_pydict({'data': [b'1', b'2']})]))"
        )
        run(program, certificates, str(tmp_path / "writer"))
        assert server.authorizations[-1] == f"Bearer {CANARY}-{len(calls(log))}"


@pytest.mark.parametrize("other", [{"credentialsFile": "/key.json"}, {"clientEmail": "a@b.test", "privateKey": "k"}])
def test_other_credentials_beside_a_provider_conflict(other: dict[str, str]) -> None:
    raw = {"projectId": "shop", "subscriptionId": "orders", "spoolLocation": "/s", "credentialProvider": "shop:token"}
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*credentialProvider"):
        parse_read_options(raw | other, {})


def test_a_provider_is_never_used_without_tls() -> None:
    raw = {"topicId": "projects/shop/topics/orders", "credentialProvider": "shop:token"}
    insecure = {"endpoint": "http://pubsub.shop.test:80", "allowInsecure": "true"}
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*credentialProvider and allowInsecure"):
        parse_write_options(raw | insecure, {})
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*credentialProvider is given"):
        parse_write_options(raw, {"PUBSUB_EMULATOR_HOST": "emulator.shop.test:8085"})


def test_the_service_credential_of_databricks_is_refused_with_our_option_and_its_form() -> None:
    with pytest.raises(OptionError, match=r"Use credentialProvider instead\. Give module:Class"):
        parse_write_options({"topicId": "projects/shop/topics/orders", "serviceCredential": "orders"}, {})
