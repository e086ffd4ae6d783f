"""The class that the documentation shows for Amazon MSK with IAM: what it signs, and for how long."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from connectors.core.errors import ConnectorError
from connectors.kafka.client.factory import TokenCallback
from tests.support.docs_facts import Page

ROOT = Path(__file__).parents[4]
PAGE = Path("docs/how-to/authenticate.md")
ACCESS_KEY, SECRET_KEY, SESSION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a/session+token="
HOST = "kafka.eu-west-1.amazonaws.com"


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The class of the page, in a module of its own."""
    [block] = [
        text for text in Page(PAGE, (ROOT / PAGE).read_text()).blocks("python") if "MSKAuthTokenProvider" in text
    ]
    (tmp_path / "shop_msk_tokens.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    return "shop_msk_tokens:MskTokens"


def signature(query: str, region: str, secret: str) -> str:
    """The signature of a presigned GET by AWS's rules (Signature Version 4), written without their code."""
    signed = sorted(part for part in query.split("&") if not part.startswith(("X-Amz-Signature=", "User-Agent=")))
    request = ["GET", "/", "&".join(signed), f"host:{HOST}", "", "host", hashlib.sha256(b"").hexdigest()]
    at = parse_qs(query)["X-Amz-Date"][0]
    scope = f"{at[:8]}/{region}/kafka-cluster/aws4_request"
    digest = hashlib.sha256("\n".join(request).encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for step in scope.split("/"):
        key = hmac.digest(key, step.encode(), "sha256")
    return hmac.digest(key, f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}".encode(), "sha256").hex()


def test_the_token_is_a_signed_connect_of_fifteen_minutes(provider: str) -> None:
    token, expires, *_ = TokenCallback(provider)("")
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    query = {name: value for name, [value] in parse_qs(url.query).items()}
    assert (url.scheme, url.netloc, url.path) == ("https", HOST, "/")
    assert query["Action"] == "kafka-cluster:Connect"
    assert query["X-Amz-Credential"].startswith(f"{ACCESS_KEY}/")
    assert (query["X-Amz-Security-Token"], query["X-Amz-Expires"]) == (SESSION, "900")
    assert query["X-Amz-Signature"] == signature(url.query, "eu-west-1", SECRET_KEY)
    assert query["X-Amz-Signature"] != signature(url.query, "eu-west-1", "another")
    assert 840 < expires - time.time() <= 900


def test_without_credentials_the_error_says_so(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "")
    callback = TokenCallback(provider)
    with pytest.raises(Exception, match="credentials") as caught:
        callback("")
    error = callback._failed(caught.value)
    assert isinstance(error, ConnectorError)
    assert error.code == "KAFKA_TOKEN_FAILED"
    assert SECRET_KEY not in str(error)
