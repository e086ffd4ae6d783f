"""The doctor finds what keeps a stream of Pub/Sub from running: each thing is broken here on purpose."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from connectors.cli.doctor import check_source
from connectors.core.diagnostics import Finding, Outcome
from connectors.core.formats import CONNECTORS
from tests.servers.certificates import make_certificates
from tests.servers.java import free_port
from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig

[CONNECTOR] = [each for each in CONNECTORS if each.package == "pubsub"]

WORKERS = 1


def look(rig: PubSubRig, **changes: str) -> dict[str, Finding]:
    """The findings by check."""
    return {finding.check: finding for finding in check_source(CONNECTOR, rig.options(**changes), {})}


def bad(findings: Mapping[str, Finding]) -> dict[str, str]:
    """The codes of what is not ok; each has a fix. That a test's folder is volatile is known."""
    found = [each for each in findings.values() if each.outcome in {Outcome.FAILURE, Outcome.WARNING}]
    assert all(each.fix for each in found)
    return {each.check: each.code for each in found if each.check != "disk"}


def test_a_subscription_without_faults_has_no_complaint_and_loses_no_message(rig: PubSubRig) -> None:
    rig.publish(3)
    findings = look(rig)
    assert bad(findings) == {}
    assert {*findings} >= {"options", "reach", "authenticate", "list", "read", "writable", "content", "held by"}
    assert len(rig.server.backlog_ids(SUBSCRIPTION)) == 3
    assert not rig.spool.exists()


def test_an_illegal_option_is_reported_and_nothing_else_is_tried(rig: PubSubRig) -> None:
    findings = look(rig, subscriptonId="typo")
    assert bad(findings) == {"options": "OPTION_UNKNOWN"}
    assert set(findings) == {"packages", "fast decoder", "options"}


def test_an_unknown_host_is_reported_and_the_steps_behind_it_are_skipped(rig: PubSubRig) -> None:
    findings = look(rig, endpoint="https://nowhere.invalid")
    assert bad(findings) == {"reach": "NAME_UNKNOWN"}
    skipped = {name for name, finding in findings.items() if finding.outcome is Outcome.SKIPPED}
    assert skipped == {"authenticate", "list", "read"}
    assert findings["writable"].outcome is Outcome.OK, "the spool is checked all the same"


def test_a_port_where_nobody_listens_and_one_without_tls_are_reported(rig: PubSubRig) -> None:
    assert bad(look(rig, endpoint=f"127.0.0.1:{free_port()}")) == {"reach": "TCP_NO_CONNECTION"}
    assert bad(look(rig, endpoint=f"https://{rig.endpoint}")) == {"reach": "TLS_NOT_SPOKEN"}


@pytest.mark.parametrize("status", ["UNAUTHENTICATED", "UNAVAILABLE"])
def test_refused_credentials_and_a_service_that_does_not_respond_are_reported(rig: PubSubRig, status: str) -> None:
    rig.server.fail("GetSubscription", status, times=None)
    assert bad(look(rig)) == {"authenticate": f"PUBSUB_{status}"}


def test_credentials_that_cannot_be_read_are_reported_without_them(
    rig: PubSubRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_certificates(tmp_path / "certificates")
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    (tmp_path / "key.json").write_text('{"type": "nothing", "private_key": "canary-55"}')
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        key = str(tmp_path / "key.json")
        findings = look(rig, endpoint=f"https://127.0.0.1:{server.server_port}", credentialsFile=key)
        server.shutdown()
        thread.join()
    assert findings["reach"].outcome is Outcome.OK
    assert findings["authenticate"].code == "CREDENTIALS_UNREADABLE"
    assert "canary-55" not in str(findings)


def test_a_missing_role_to_take_messages_is_reported(rig: PubSubRig) -> None:
    rig.server.fail("ModifyAckDeadline", "PERMISSION_DENIED", times=None)
    findings = look(rig)
    assert bad(findings) == {"read": "PUBSUB_PERMISSION_DENIED"}
    assert "roles/pubsub.subscriber" in findings["read"].seen


def test_a_missing_role_to_see_the_subscription_is_a_warning_and_the_right_to_take_messages_is_checked(
    rig: PubSubRig,
) -> None:
    rig.server.fail("GetSubscription", "PERMISSION_DENIED", times=None)
    findings = look(rig)
    assert bad(findings) == {"list": "PUBSUB_PERMISSION_DENIED"}
    assert (findings["list"].outcome, findings["read"].outcome) == (Outcome.WARNING, Outcome.OK)
    rig.server.fail("ModifyAckDeadline", "PERMISSION_DENIED", times=None)
    assert bad(look(rig)) == {"list": "PUBSUB_PERMISSION_DENIED", "read": "PUBSUB_PERMISSION_DENIED"}


def test_a_subscription_that_is_absent_is_reported_and_is_not_created(rig: PubSubRig) -> None:
    rig.delete_subscription()
    assert bad(look(rig)) == {"list": "PUBSUB_SUBSCRIPTION_NOT_FOUND"}
    findings = look(rig, topicId=TOPIC)
    assert bad(findings) == {}
    assert "will be created" in findings["list"].seen
    assert "not checked" in findings["read"].seen
    assert bad(look(rig)) == {"list": "PUBSUB_SUBSCRIPTION_NOT_FOUND"}
    assert bad(look(rig, topicId=TOPIC + "-2")) == {"list": "PUBSUB_TOPIC_DELETED"}


def test_a_subscription_that_cannot_be_read_is_reported(rig: PubSubRig) -> None:
    assert bad(look(rig, topicId="projects/shop/topics/other")) == {"list": "PUBSUB_TOPIC_MISMATCH"}
    rig.server.create_subscription(f"{SUBSCRIPTION}-2", TOPIC, ordering=True)
    assert bad(look(rig, subscriptionId=f"{SUBSCRIPTION}-2", fetchers="2")) == {"list": "PUBSUB_ORDERED_ONE_FETCHER"}
    rig.delete_topic()
    assert bad(look(rig)) == {"list": "PUBSUB_TOPIC_DELETED"}


def test_a_subscription_that_delivers_nothing_any_more_is_reported(rig: PubSubRig) -> None:
    rig.detach_subscription()
    assert bad(look(rig)) == {"list": "PUBSUB_SUBSCRIPTION_DETACHED"}


def test_a_running_query_holds_the_spool(rig: PubSubRig) -> None:
    rig.publish(5)
    with rig.query() as query:
        rig.run_until_all(query)
        findings = look(rig)
        assert bad(findings) == {"held by": "SPOOL_IN_USE"}
        assert "5 rows" in findings["content"].seen
    assert "nobody" in look(rig)["held by"].seen
