"""Credentials of a pod: the default chain asks the agent that EKS names in two variables, here one on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from connectors.core.errors import CredentialsError
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.options.source import parse_read_options


class Agent(ThreadingHTTPServer):
    """Gives a key to whoever sends the token of the pod, and notes each request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.tokens: list[str | None] = []


class Answer(BaseHTTPRequestHandler):
    server: Agent

    def do_GET(self) -> None:
        self.server.tokens.append(self.headers.get("Authorization"))
        allowed = self.server.tokens[-1] == "token-of-the-pod"
        expires = datetime.now(UTC) + timedelta(hours=6)
        key = {"AccessKeyId": "AKIDPOD", "SecretAccessKey": "secret", "Token": "session"}
        body = json.dumps({**key, "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ")} if allowed else {}).encode()
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """An agent, and the variables of a pod; nothing else gives credentials."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN")
    for name in (*names, "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with Agent() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        (tmp_path / "token").write_text("token-of-the-pod")
        monkeypatch.setenv(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.server_port}/v1/credentials"
        )
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        yield server
        server.shutdown()
        thread.join()


def client() -> KinesisClient:
    options = parse_read_options({"streamName": "orders", "region": "eu-west-1"}, {}, streaming=True)
    return KinesisClient(options)


def test_a_pod_takes_the_credentials_of_its_agent(agent: Agent) -> None:
    assert client().credentials() == "container-role"
    assert set(agent.tokens) == {"token-of-the-pod"}


def test_an_agent_that_refuses_is_an_error_about_credentials(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of another pod")
    with pytest.raises(CredentialsError):
        client().credentials()
    assert set(agent.tokens) == {"of another pod"}
