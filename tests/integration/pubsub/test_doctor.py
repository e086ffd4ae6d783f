"""The doctor finds what keeps a stream of Pub/Sub from running: each thing is broken here on purpose."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from connectors.core.diagnostics import Finding, Outcome
from connectors.core.formats import CONNECTORS
from connectors.doctor import check_source
from tests.servers.certificates import make_certificates
from tests.servers.java import free_port
from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig

[CONNECTOR] = [each for each in CONNECTORS if each.package == "pubsub"]

WORKERS = 1


def look(rig: PubSubRig, **changes: str) -> dict[str, Finding]:
    """The findings by check."""
    return {each.check: each for each in check_source(CONNECTOR, rig.options(**changes), {}, None)}


def bad(findings: Mapping[str, Finding]) -> dict[str, str]:
    """The codes of what is not ok; each has a fix. That a test's folder is volatile is known."""
    found = [each for each in findings.values() if each.outcome in {Outcome.FAILURE, Outcome.WARNING}]
    assert all(each.fix for each in found)
    return {each.check: each.code for each in found if each.check != "kind of disk"}


def test_a_subscription_that_is_well_has_no_complaint_and_loses_no_message(rig: PubSubRig) -> None:
    rig.publish(3)
    findings = look(rig)
    assert bad(findings) == {}
    assert set(findings) >= {"name", "tcp", "authentication", "resource", "permission", "type", "deadline", "retention"}
    assert len(rig.server.backlog_ids(SUBSCRIPTION)) == 3
    assert not rig.spool.exists()


def test_an_illegal_option_is_reported_and_nothing_else_is_tried(rig: PubSubRig) -> None:
    findings = look(rig, subscriptonId="typo")
    assert bad(findings) == {"options": "OPTION_UNKNOWN"}
    assert set(findings) == {"packages", "options"}


def test_an_unknown_host_is_reported_and_the_steps_behind_it_are_skipped(rig: PubSubRig) -> None:
    findings = look(rig, endpoint="https://nowhere.invalid")
    assert bad(findings) == {"name": "NAME_UNKNOWN"}
    skipped = {name for name, each in findings.items() if each.outcome is Outcome.SKIPPED}
    assert skipped >= {"tcp", "tls", "authentication", "resource", "permission"}
    assert findings["writable"].outcome is Outcome.OK, "the spool is looked at all the same"


def test_a_port_where_nobody_listens_is_reported(rig: PubSubRig) -> None:
    assert bad(look(rig, endpoint=f"127.0.0.1:{free_port()}")) == {"tcp": "TCP_NO_CONNECTION"}


def test_tls_to_a_port_without_it_is_reported(rig: PubSubRig) -> None:
    assert bad(look(rig, endpoint=f"https://{rig.endpoint}")) == {"tls": "TLS_NOT_SPOKEN"}


def test_credentials_that_are_refused_are_reported(rig: PubSubRig) -> None:
    rig.server.fail("GetSubscription", "UNAUTHENTICATED", times=None)
    assert bad(look(rig)) == {"authentication": "PUBSUB_UNAUTHENTICATED"}


def test_a_service_that_does_not_answer_is_reported(rig: PubSubRig) -> None:
    rig.server.fail("GetSubscription", "UNAVAILABLE", times=None)
    assert bad(look(rig)) == {"authentication": "PUBSUB_UNAVAILABLE"}


def test_a_missing_role_to_take_messages_is_reported(rig: PubSubRig) -> None:
    rig.server.fail("ModifyAckDeadline", "PERMISSION_DENIED", times=None)
    findings = look(rig)
    assert bad(findings) == {"permission": "PUBSUB_PERMISSION_DENIED"}
    assert "roles/pubsub.subscriber" in findings["permission"].found


def test_a_missing_role_to_look_at_the_subscription_is_a_warning(rig: PubSubRig) -> None:
    rig.server.fail("GetSubscription", "PERMISSION_DENIED", times=None)
    findings = look(rig)
    assert bad(findings) == {"resource": "PUBSUB_PERMISSION_DENIED"}
    assert findings["resource"].outcome is Outcome.WARNING
    assert findings["permission"].outcome is Outcome.OK


def test_the_right_to_take_messages_is_checked_without_the_right_to_look_at_the_subscription(rig: PubSubRig) -> None:
    for call in ("GetSubscription", "ModifyAckDeadline"):
        rig.server.fail(call, "PERMISSION_DENIED", times=None)
    assert bad(look(rig)) == {"resource": "PUBSUB_PERMISSION_DENIED", "permission": "PUBSUB_PERMISSION_DENIED"}


def test_a_subscription_that_is_absent_is_reported_and_is_not_made(rig: PubSubRig) -> None:
    rig.delete_subscription()
    assert bad(look(rig)) == {"resource": "PUBSUB_SUBSCRIPTION_NOT_FOUND"}
    findings = look(rig, topicId=TOPIC)
    assert bad(findings) == {}
    assert "will be created" in findings["resource"].found
    assert findings["permission"].outcome is Outcome.SKIPPED
    assert bad(look(rig)) == {"resource": "PUBSUB_SUBSCRIPTION_NOT_FOUND"}
    assert bad(look(rig, topicId=TOPIC + "-2")) == {"resource": "PUBSUB_TOPIC_DELETED"}


def test_a_subscription_that_delivers_nothing_any_more_is_reported(rig: PubSubRig) -> None:
    rig.detach_subscription()
    assert bad(look(rig)) == {"type": "PUBSUB_SUBSCRIPTION_DETACHED"}


def test_a_subscription_without_its_topic_and_one_of_another_topic_are_reported(rig: PubSubRig) -> None:
    assert bad(look(rig, topicId="projects/shop/topics/other")) == {"type": "PUBSUB_TOPIC_MISMATCH"}
    rig.delete_topic()
    assert bad(look(rig)) == {"type": "PUBSUB_TOPIC_DELETED"}


def test_more_fetchers_than_an_ordered_subscription_may_have_are_reported(rig: PubSubRig) -> None:
    rig.server.create_subscription(f"{SUBSCRIPTION}-2", TOPIC, ordering=True)
    assert bad(look(rig, subscriptionId=f"{SUBSCRIPTION}-2", fetchers="2")) == {"type": "PUBSUB_ORDERED_ONE_FETCHER"}


def test_a_long_deadline_and_a_short_retention_are_warned_of(rig: PubSubRig) -> None:
    rig.server.create_subscription(f"{SUBSCRIPTION}-3", TOPIC, ack_deadline_seconds=600, retention_seconds=3600)
    findings = look(rig, subscriptionId=f"{SUBSCRIPTION}-3")
    assert bad(findings) == {"deadline": "PUBSUB_LONG_DEADLINE", "retention": "PUBSUB_SHORT_RETENTION"}


def test_a_horizon_shorter_than_the_retention_is_warned_of(rig: PubSubRig) -> None:
    assert bad(look(rig, dedupHorizon="1h")) == {"retention": "PUBSUB_DEDUP_HORIZON_SHORT"}


class Clock(BaseHTTPRequestHandler):
    """A server of HTTPS whose clock is off by `seconds`."""

    seconds = 0.0

    def do_HEAD(self) -> None:
        self.send_response_only(404)
        self.send_header("Date", formatdate(time.time() + self.seconds, usegmt=True))
        self.end_headers()


@pytest.mark.parametrize(
    ("seconds", "code", "outcome"),
    [(0, "", Outcome.OK), (60, "CLOCK_WRONG", Outcome.WARNING), (-3600, "CLOCK_WRONG", Outcome.FAILURE)],
)
def test_a_clock_that_is_off_is_reported(
    rig: PubSubRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, code: str, outcome: Outcome
) -> None:
    folder = make_certificates(tmp_path / "certificates")
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    handler = type("Handler", (Clock,), {"seconds": seconds})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        key = tmp_path / "key.json"
        key.write_text('{"type": "nothing", "private_key": "canary-55"}')
        findings = look(rig, endpoint=f"https://127.0.0.1:{server.server_port}", credentialsFile=str(key))
        server.shutdown()
        thread.join()
    assert findings["tls"].outcome is Outcome.OK
    assert (findings["clock"].code, findings["clock"].outcome) == (code, outcome)
    if outcome is not Outcome.FAILURE:
        assert findings["authentication"].code == "CREDENTIALS_UNREADABLE"
    assert "canary-55" not in str(findings)


def test_a_running_query_holds_the_spool_and_its_checkpoint_fits(rig: PubSubRig) -> None:
    rig.publish(5)
    with rig.query() as query:
        rig.run_until_all(query)
        findings = {each.check: each for each in check_source(CONNECTOR, rig.options(), {}, rig.checkpoint)}
        assert bad(findings) == {"held by": "SPOOL_IN_USE"}
        assert "ends at 5 of 5 rows" in findings["checkpoint"].found
    assert "nobody" in look(rig)["held by"].found
