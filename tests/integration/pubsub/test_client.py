"""The client against the server of `connectors.testing`, and against small servers for what that one does not do."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from google.protobuf import any_pb2
from google.pubsub_v1 import types
from google.rpc import error_details_pb2, status_pb2

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    OptionError,
    ServiceUnavailableError,
    SourceGoneError,
)
from connectors.core.retry import OutageRule
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.client.errors import RpcCall, connector_error
from connectors.pubsub.options.client import GOOGLE, Transport
from connectors.pubsub.options.source import PubSubReadOptions, parse_read_options
from connectors.pubsub.source.micro_batch import ensure_subscription
from connectors.testing.pubsub import PubSubServer

PROJECT = "projects/shop"
TOPIC = f"{PROJECT}/topics/orders"
SUBSCRIPTION = f"{PROJECT}/subscriptions/orders"
DAY = 86_400.0
QUICK = OutageRule(20.0, "retryTimeout", cap_seconds=0.01)
HASTY = OutageRule(0.05, "retryTimeout", cap_seconds=0.01)


def plain(target: str) -> Transport:
    return Transport(target, secure=False, local=True)


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    with PubSubServer(seed=1) as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
def client(server: PubSubServer) -> Iterator[PubSubClient]:
    with PubSubClient(plain(server.endpoint), outage_rule=QUICK) as open_client:
        yield open_client


def options(server: PubSubServer, **more: str) -> PubSubReadOptions:
    raw = {"projectid": "shop", "subscriptionid": "orders", "spoollocation": "/spool", "endpoint": server.endpoint}
    return parse_read_options(raw | more, {})


def call(server: PubSubServer, service: str, method: str, request: Any) -> None:
    """A call that the client under test has no method for."""
    with grpc.insecure_channel(server.endpoint) as channel:
        channel.unary_unary(f"/google.pubsub.v1.{service}/{method}", None, None)(
            type(request).serialize(request), timeout=10
        )


def refusal(server: PubSubServer, client: PubSubClient, *, spool_is_new: bool = True, **more: str) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        ensure_subscription(client, options(server, **more), spool_is_new=spool_is_new)
    assert "\n" not in str(caught.value)
    return caught.value


# -- the life of a subscription ---------------------------------------------------------------------------------


def test_subscription_that_is_there_is_described(server: PubSubServer, client: PubSubClient) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC, ack_deadline_seconds=42, retention_seconds=2 * DAY, ordering=True)
    state = ensure_subscription(client, options(server), spool_is_new=False)
    assert state.info is not None
    assert state.warnings == ()
    assert (state.info.name, state.info.topic) == (SUBSCRIPTION, TOPIC)
    assert (state.info.ack_deadline_seconds, state.info.retention_seconds) == (42, 2 * DAY)
    assert state.info.message_ordering
    assert not state.info.exactly_once_delivery
    assert (state.info.delivery, state.info.filter, state.info.dead_letter_topic) == ("pull", "", "")


def test_absent_subscription_is_created_for_a_new_spool_when_the_topic_is_given(
    server: PubSubServer, client: PubSubClient
) -> None:
    state = ensure_subscription(client, options(server, topicid="orders"), spool_is_new=True)
    assert state.info == client.get_subscription(SUBSCRIPTION)
    assert client.get_subscription(SUBSCRIPTION).topic == TOPIC


def test_absent_subscription_without_a_topic_is_an_error_that_says_what_to_do(
    server: PubSubServer, client: PubSubClient
) -> None:
    error = refusal(server, client)
    assert isinstance(error, SourceGoneError)
    assert error.code == "PUBSUB_SUBSCRIPTION_NOT_FOUND"
    for part in (SUBSCRIPTION, "topicId", "gcloud pubsub subscriptions create orders --project=shop"):
        assert part in str(error)


@pytest.mark.parametrize("more", [{}, {"topicid": "orders"}])
def test_vanished_subscription_of_a_used_spool_is_an_error(
    server: PubSubServer, client: PubSubClient, more: dict[str, str]
) -> None:
    error = refusal(server, client, spool_is_new=False, **more)
    assert error.code == "PUBSUB_SUBSCRIPTION_NOT_FOUND"
    for part in (SUBSCRIPTION, "lost", "failOnDataLoss=false"):
        assert part in str(error)


def test_vanished_subscription_is_created_again_with_a_warning_where_loss_is_accepted(
    server: PubSubServer, client: PubSubClient
) -> None:
    accepted = options(server, topicid="orders", failondataloss="false")
    state = ensure_subscription(client, accepted, spool_is_new=False)
    assert len(state.warnings) == 1
    assert "lost" in state.warnings[0]
    assert SUBSCRIPTION in state.warnings[0]


def test_missing_topic_is_named_when_the_subscription_has_to_be_created(
    server: PubSubServer, client: PubSubClient
) -> None:
    error = refusal(server, client, topicid="nowhere")
    assert error.code == "PUBSUB_TOPIC_NOT_FOUND"
    assert f"{PROJECT}/topics/nowhere" in str(error)


def test_topic_that_was_deleted_is_reported_and_what_the_subscription_holds_can_be_read(
    server: PubSubServer, client: PubSubClient
) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    call(server, "Publisher", "DeleteTopic", types.DeleteTopicRequest(topic=TOPIC))
    state = ensure_subscription(client, options(server, topicid="orders"), spool_is_new=False)
    (warning,) = state.warnings
    assert re.match(rf"\[PUBSUB_TOPIC_DELETED\].*{SUBSCRIPTION}.*still holds is read first", warning)
    assert state.horizon == 7 * DAY


def test_detached_subscription_is_an_error_that_says_so(server: PubSubServer, client: PubSubClient) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    call(server, "Publisher", "DetachSubscription", types.DetachSubscriptionRequest(subscription=SUBSCRIPTION))
    error = refusal(server, client)
    assert (type(error), error.code) == (SourceGoneError, "PUBSUB_SUBSCRIPTION_DETACHED")
    stream = client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="c")
    with pytest.raises(SourceGoneError, match=r"\[PUBSUB_SUBSCRIPTION_DETACHED\]"):
        next(stream)


def test_subscription_of_another_topic_is_refused(server: PubSubServer, client: PubSubClient) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    error = refusal(server, client, topicid="other")
    assert isinstance(error, OptionError)
    assert TOPIC in str(error)
    assert f"{PROJECT}/topics/other" in str(error)


def test_lost_answer_to_the_creation_is_no_error(server: PubSubServer, client: PubSubClient) -> None:
    server.fail("CreateSubscription", "UNAVAILABLE", after_effect=True)
    state = ensure_subscription(client, options(server, topicid="orders"), spool_is_new=True)
    assert state.info is not None
    assert state.info.topic == TOPIC


# -- how long ids are kept --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscription_days", "topic_days", "seconds"),
    [(2, None, 2 * DAY), (2, 3, 3 * DAY), (3, 2, 3 * DAY)],
)
def test_auto_horizon_is_the_larger_retention(
    server: PubSubServer,
    client: PubSubClient,
    subscription_days: int,
    topic_days: int | None,
    seconds: float,
) -> None:
    topic = f"{PROJECT}/topics/kept"
    server.create_topic(topic, retention_seconds=None if topic_days is None else topic_days * DAY)
    server.create_subscription(SUBSCRIPTION, topic, retention_seconds=subscription_days * DAY)
    state = ensure_subscription(client, options(server), spool_is_new=True)
    assert (state.horizon, state.warnings) == (seconds, ())


def test_horizon_of_the_option_wins_and_a_short_one_warns(server: PubSubServer, client: PubSubClient) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC, retention_seconds=2 * DAY)
    longer = ensure_subscription(client, options(server, deduphorizon="3d"), spool_is_new=True)
    assert (longer.horizon, longer.warnings) == (3 * DAY, ())
    shorter = ensure_subscription(client, options(server, deduphorizon="1d"), spool_is_new=True)
    assert shorter.horizon == DAY
    assert "second row" in shorter.warnings[0]


@pytest.mark.parametrize(
    ("method", "resource"), [("GetSubscription", SUBSCRIPTION), ("GetTopic", f"{PROJECT}/topics/plain")]
)
def test_unreadable_retention_means_31_days_and_a_warning_that_names_the_role(
    server: PubSubServer, client: PubSubClient, method: str, resource: str
) -> None:
    server.create_subscription(SUBSCRIPTION, f"{PROJECT}/topics/plain")
    server.fail(method, "PERMISSION_DENIED", times=None)
    state = ensure_subscription(client, options(server), spool_is_new=True)
    assert state.horizon == 31 * DAY
    assert (state.info is None) == (method == "GetSubscription")
    assert len(state.warnings) == 1
    assert "roles/pubsub.viewer" in state.warnings[0]
    assert resource in state.warnings[0]


def test_subscription_that_may_not_be_read_warns_also_with_a_horizon_of_its_own(
    server: PubSubServer, client: PubSubClient
) -> None:
    server.fail("GetSubscription", "PERMISSION_DENIED", times=None)
    state = ensure_subscription(client, options(server, deduphorizon="1d"), spool_is_new=True)
    assert (state.info, state.horizon) == (None, DAY)
    assert "roles/pubsub.viewer" in state.warnings[0]


def ack_request(*ack_ids: str) -> bytes:
    return types.AcknowledgeRequest.serialize(types.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=ack_ids))


def nack_request(*ack_ids: str) -> bytes:
    request = types.ModifyAckDeadlineRequest(subscription=SUBSCRIPTION, ack_ids=ack_ids, ack_deadline_seconds=0)
    return types.ModifyAckDeadlineRequest.serialize(request)


def decoded(response: bytes) -> list[types.ReceivedMessage]:
    return list(types.StreamingPullResponse.deserialize(response).received_messages)


def delivered(server: PubSubServer, client: PubSubClient) -> str:
    """Publish a message to a new subscription and pull it: its ack id."""
    server.create_subscription(SUBSCRIPTION, TOPIC)
    server.publish(TOPIC, [b"one"])
    stream = client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=600, client_id="c")
    [message] = decoded(next(stream))
    stream.cancel()
    server.wait_for_streams(0)
    return message.ack_id


# -- errors of calls --------------------------------------------------------------------------------------------

TRANSIENT = ["UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "ABORTED", "CANCELLED", "UNKNOWN"]


@pytest.mark.parametrize("code", TRANSIENT)
def test_transient_status_is_retried(server: PubSubServer, client: PubSubClient, code: str) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    server.fail("GetSubscription", code, times=5)
    assert client.get_subscription(SUBSCRIPTION).name == SUBSCRIPTION


@pytest.mark.parametrize("code", TRANSIENT)
def test_transient_status_of_a_pull_or_an_ack_is_left_to_the_caller(
    server: PubSubServer, client: PubSubClient, code: str
) -> None:
    ack_id = delivered(server, client)
    server.fail("*", code, times=3)
    for attempt in (
        lambda: next(client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="c")),
        lambda: client.acknowledge(SUBSCRIPTION, ack_request(ack_id), timeout_seconds=10),
        lambda: client.modify_ack_deadline(SUBSCRIPTION, nack_request(ack_id), timeout_seconds=10),
    ):
        with pytest.raises(ServiceUnavailableError, match=code) as caught:
            attempt()
        assert caught.value.transient
        assert SUBSCRIPTION in str(caught.value)


def test_server_that_does_not_come_back_is_an_error_that_names_the_endpoint() -> None:
    with PubSubServer() as stopped:
        target = stopped.endpoint
    with PubSubClient(plain(target), outage_rule=HASTY) as client, pytest.raises(ServiceUnavailableError) as caught:
        client.get_subscription(SUBSCRIPTION)
    assert target in str(caught.value)
    assert "emulator" in str(caught.value)


def test_wait_that_gets_a_signal_to_stop_ends_the_retries() -> None:
    with PubSubServer() as stopped:
        target = stopped.endpoint
    stop = threading.Event()
    stop.set()
    with PubSubClient(plain(target), sleep=stop.wait) as client, pytest.raises(ServiceUnavailableError):
        client.get_subscription(SUBSCRIPTION)


@pytest.mark.parametrize(
    ("method", "role", "resource", "act"),
    [
        (
            "GetSubscription",
            "roles/pubsub.viewer",
            SUBSCRIPTION,
            lambda client, _: client.get_subscription(SUBSCRIPTION),
        ),
        ("GetTopic", "roles/pubsub.viewer", TOPIC, lambda client, _: client.get_topic_retention(TOPIC)),
        (
            "CreateSubscription",
            "roles/pubsub.editor",
            PROJECT,
            lambda client, _: client.create_subscription(SUBSCRIPTION, TOPIC),
        ),
        (
            "StreamingPull",
            "roles/pubsub.subscriber",
            SUBSCRIPTION,
            lambda client, _: next(client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="c")),
        ),
        (
            "Acknowledge",
            "roles/pubsub.subscriber",
            SUBSCRIPTION,
            lambda client, ack_id: client.acknowledge(SUBSCRIPTION, ack_request(ack_id), timeout_seconds=10),
        ),
        (
            "ModifyAckDeadline",
            "roles/pubsub.subscriber",
            SUBSCRIPTION,
            lambda client, ack_id: client.modify_ack_deadline(SUBSCRIPTION, nack_request(ack_id), timeout_seconds=10),
        ),
    ],
)
def test_permission_denied_is_one_line_that_names_role_and_resource(
    server: PubSubServer, client: PubSubClient, method: str, role: str, resource: str, act: Callable[[Any, str], object]
) -> None:
    ack_id = delivered(server, client)
    server.fail(method, "PERMISSION_DENIED", message="User not authorized\nto do this.")
    with pytest.raises(AccessDeniedError) as caught:
        act(client, ack_id)
    text = str(caught.value)
    assert text.startswith(f"[PUBSUB_PERMISSION_DENIED] {method} is denied: it needs the role {role} ({resource}).")
    assert "User not authorized to do this." in text
    assert "\n" not in text


def test_unauthenticated_names_the_option(server: PubSubServer, client: PubSubClient) -> None:
    server.fail("GetSubscription", "UNAUTHENTICATED")
    with pytest.raises(CredentialsError, match="credentialsFile"):
        client.get_subscription(SUBSCRIPTION)


def test_other_status_is_an_error_with_what_the_service_says(server: PubSubServer, client: PubSubClient) -> None:
    server.fail("GetSubscription", "INVALID_ARGUMENT", message="the name is too long")
    with pytest.raises(ConnectorError, match=r"INVALID_ARGUMENT .*the name is too long") as caught:
        client.get_subscription(SUBSCRIPTION)
    assert not caught.value.transient


@pytest.mark.parametrize(
    "said",
    [
        "header Authorization: Bearer do-not-show was bad",
        "token ya29.do-not-show expired",
        'key {"private_key": "do-not-show", "id": 1}',
        "-----BEGIN PRIVATE KEY-----\ndo-not-show\n-----END PRIVATE KEY-----",
        "eyJhbGciOi.do-not-show.c2ln",
    ],
)
def test_service_that_echoes_a_credential_does_not_get_it_into_an_error(
    server: PubSubServer, client: PubSubClient, said: str
) -> None:
    server.fail("GetSubscription", "INVALID_ARGUMENT", message=said)
    with pytest.raises(ConnectorError) as caught:
        client.get_subscription(SUBSCRIPTION)
    assert "do-not-show" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("said", "kind"),
    [("('invalid_grant: Invalid JWT Signature.', {})", CredentialsError), ("timed out", ServiceUnavailableError)],
)
def test_token_that_is_refused_is_terminal_and_one_that_cannot_be_had_now_is_not(
    said: str, kind: type[ConnectorError]
) -> None:
    detail = f"Getting metadata from plugin failed with error: {said}"
    error = connector_error(RpcCall("StreamingPull", SUBSCRIPTION, GOOGLE), "UNAVAILABLE", detail)
    assert type(error) is kind
    assert said not in str(error)


def test_token_endpoint_whose_certificate_is_not_trusted_names_the_option_of_its_authorities() -> None:
    detail = (
        "Getting metadata from plugin failed with error: SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] do-not-show')"
    )
    error = connector_error(RpcCall("StreamingPull", SUBSCRIPTION, GOOGLE), "UNAVAILABLE", detail)
    assert (type(error), error.code) == (CredentialsError, "TLS_CERTIFICATE")
    assert "REQUESTS_CA_BUNDLE" in error.action
    assert "do-not-show" not in str(error)


def test_unreachable_tls_endpoint_that_may_be_an_emulator_says_what_to_set() -> None:
    transport = Transport("emulator:8085", secure=True, local=False)
    text = str(connector_error(RpcCall("GetSubscription", SUBSCRIPTION, transport), "UNAVAILABLE", "no handshake"))
    assert "PUBSUB_EMULATOR_HOST" in text
    assert "allowInsecure=true" in text


# -- pulling and acknowledging ----------------------------------------------------------------------------------


def test_messages_come_as_wire_bytes_and_go_when_they_are_acked(server: PubSubServer, client: PubSubClient) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    server.publish(TOPIC, [b"one", b"two"])
    stream = client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="c")
    messages: list[types.ReceivedMessage] = []
    while len(messages) < 2:
        messages += decoded(next(stream))
    assert sorted(message.message.data for message in messages) == [b"one", b"two"]
    failures = client.acknowledge(SUBSCRIPTION, ack_request(*(m.ack_id for m in messages)), timeout_seconds=10)
    assert (failures.transient, failures.permanent) == (frozenset(), frozenset())
    server.wait_until(lambda: server.outstanding(SUBSCRIPTION) == 0 and server.backlog(SUBSCRIPTION) == 0)
    stream.cancel()


def test_message_that_is_given_back_comes_again(server: PubSubServer, client: PubSubClient) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    server.publish(TOPIC, [b"one"])
    stream = client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=600, client_id="c")
    [first] = decoded(next(stream))
    client.modify_ack_deadline(SUBSCRIPTION, nack_request(first.ack_id), timeout_seconds=10)
    [again] = decoded(next(stream))
    assert again.message.message_id == first.message.message_id
    stream.cancel()


def test_flow_control_travels_in_the_first_request(server: PubSubServer, client: PubSubClient) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    server.publish(TOPIC, [b"x"] * 20)
    stream = client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=600, client_id="c", max_outstanding_bytes=1)
    assert (len(decoded(next(stream))), server.outstanding(SUBSCRIPTION)) == (1, 1)
    stream.cancel()


def waiting(stream: Iterator[bytes]) -> tuple[threading.Thread, queue.SimpleQueue[str]]:
    """A thread that waits for the next response, and what comes of it."""
    outcome: queue.SimpleQueue[str] = queue.SimpleQueue()

    def wait() -> None:
        try:
            next(stream)
            outcome.put("response")
        except StopIteration:
            outcome.put("end")
        except ConnectorError as error:
            outcome.put(error.code)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, outcome


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_stream_that_is_ended_here_wakes_up_and_ends_in_good_order(
    server: PubSubServer, client: PubSubClient, how: str
) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    stream = client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="c")
    thread, outcome = waiting(stream)
    server.wait_for_streams(1)
    (stream.cancel if how == "cancel" else client.close)()
    assert outcome.get(timeout=10) == "end"
    thread.join()


def test_stream_that_the_service_breaks_is_transient(server: PubSubServer, client: PubSubClient) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    stream = client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="c")
    thread, outcome = waiting(stream)
    server.wait_for_streams(1)
    server.close_streams()
    assert outcome.get(timeout=10) in {"PUBSUB_UNAVAILABLE", "end"}
    thread.join()


def watched(requests: Iterator[bytes], readers: list[threading.Thread]) -> Iterator[bytes]:
    """The requests of a stream, with the thread that reads them noted: gRPC makes one for each stream."""
    readers.append(threading.current_thread())
    yield from requests


def test_streams_that_the_service_ends_leave_no_thread_behind(server: PubSubServer) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    readers: list[threading.Thread] = []

    class Watching(PubSubClient):
        def start_stream(self, requests: Iterator[bytes]) -> Any:
            return super().start_stream(watched(requests, readers))

    with Watching(plain(server.endpoint), outage_rule=QUICK) as client:
        streams = [client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="c") for _ in range(5)]
        server.wait_for_streams(5)
        server.close_streams()
        for stream in streams:
            with pytest.raises((ServiceUnavailableError, StopIteration)):
                next(stream)
        assert len(readers) == 5
        server.wait_until(lambda: not any(reader.is_alive() for reader in readers))


def test_a_stream_that_is_over_before_its_caller_has_it_leaves_no_thread_behind(server: PubSubServer) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    readers: list[threading.Thread] = []

    class SlowToStart(PubSubClient):
        """Gives a call back only when the service has ended it, as a thread may that has to wait its turn."""

        def start_stream(self, requests: Iterator[bytes]) -> Any:
            call = super().start_stream(watched(requests, readers))
            server.wait_for_streams(1)
            server.close_streams()
            server.wait_until(lambda: not call.is_active())
            return call

    with SlowToStart(plain(server.endpoint), outage_rule=QUICK) as client:
        client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="c")
        [reader] = readers
        server.wait_until(lambda: not reader.is_alive())


# -- what the server of connectors.testing does not do ----------------------------------------------------------


@contextmanager
def answering(handlers: dict[str, Callable[[bytes, grpc.ServicerContext], bytes]]) -> Iterator[str]:
    """A server of plain functions from request to response bytes, by name of the method; gives its target."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            behaviour = handlers.get(details.method.rpartition("/")[2])
            return None if behaviour is None else grpc.unary_unary_rpc_method_handler(behaviour)

    with futures.ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, [Handler()], options=[("grpc.so_reuseport", 0)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def subscription_answer(**fields: Any) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    return lambda _request, _context: types.Subscription.serialize(
        types.Subscription(name=SUBSCRIPTION, topic=TOPIC, **fields)
    )


@pytest.mark.parametrize(
    ("fields", "destination"),
    [
        ({"push_config": types.PushConfig(push_endpoint="https://shop.test/hook")}, "https://shop.test/hook"),
        ({"bigquery_config": types.BigQueryConfig(table="p.d.t")}, "BigQuery"),
        ({"cloud_storage_config": types.CloudStorageConfig(bucket="b")}, "Cloud Storage"),
    ],
)
def test_subscription_that_delivers_by_itself_is_refused(fields: dict[str, Any], destination: str) -> None:
    with answering({"GetSubscription": subscription_answer(**fields)}) as target, PubSubClient(plain(target)) as client:
        info = client.get_subscription(SUBSCRIPTION)
    assert info.delivery == destination
    with pytest.raises(OptionError, match=r"\[PUBSUB_SUBSCRIPTION_NOT_PULL\]") as caught:
        info.check_readable()
    assert destination in str(caught.value)


def test_retention_of_the_topic_in_the_subscription_needs_no_role_on_the_topic() -> None:
    fields = {
        "message_retention_duration": timedelta(days=1),
        "topic_message_retention_duration": timedelta(days=5),
        "enable_exactly_once_delivery": True,
        "filter": "attributes:x",
        "dead_letter_policy": types.DeadLetterPolicy(dead_letter_topic=f"{PROJECT}/topics/dead"),
    }
    with answering({"GetSubscription": subscription_answer(**fields)}) as target, PubSubClient(plain(target)) as client:
        raw = {"subscriptionid": SUBSCRIPTION, "spoollocation": "/s", "endpoint": target}
        state = ensure_subscription(client, parse_read_options(raw, {}), spool_is_new=True)
    assert state.horizon == 5 * DAY
    assert state.info is not None
    assert state.info.exactly_once_delivery
    assert (state.info.filter, state.info.dead_letter_topic) == ("attributes:x", f"{PROJECT}/topics/dead")


def test_failed_ack_ids_of_exactly_once_delivery_are_distinguished() -> None:
    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        reasons = {"old": "PERMANENT_FAILURE_INVALID_ACK_ID", "busy": "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE"}
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.ErrorInfo(reason="EXACTLY_ONCE_ACKID_FAILURE", metadata=reasons))
        status = status_pb2.Status(code=3, message="Some ack ids have failed.", details=[detail])
        context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Some ack ids have failed.")

    handlers = {"Acknowledge": refuse, "ModifyAckDeadline": refuse}
    with answering(handlers) as target, PubSubClient(plain(target)) as client:
        acked = client.acknowledge(SUBSCRIPTION, ack_request("old", "busy", "good"), timeout_seconds=10)
        extended = client.modify_ack_deadline(SUBSCRIPTION, nack_request("old", "busy"), timeout_seconds=10)
    assert acked == extended
    assert (acked.transient, acked.permanent) == (frozenset({"busy"}), frozenset({"old"}))


@pytest.mark.parametrize(
    "details",
    [
        pytest.param(status_pb2.Status(code=14, message="Unavailable, at length").SerializeToString(), id="text-cut"),
        pytest.param(status_pb2.Status(code=8, message="Unavailable").SerializeToString(), id="another-code"),
        pytest.param(b"\xff\xff\xff", id="no-status"),
        pytest.param(
            status_pb2.Status(
                code=14,
                message="Unavailable",
                details=[any_pb2.Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff")],
            ).SerializeToString(),
            id="no-detail",
        ),
    ],
)
def test_details_that_do_not_fit_the_status_of_a_failed_ack_are_ignored(details: bytes) -> None:
    """A proxy may shorten the text of a status, or put details of its own beside it."""

    def unavailable(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata([("grpc-status-details-bin", details)])
        context.abort(grpc.StatusCode.UNAVAILABLE, "Unavailable")

    handlers = {"Acknowledge": unavailable, "ModifyAckDeadline": unavailable}
    with answering(handlers) as target, PubSubClient(plain(target)) as client:
        for call, request in ((client.acknowledge, ack_request("a")), (client.modify_ack_deadline, nack_request("a"))):
            with pytest.raises(ServiceUnavailableError) as caught:
                call(SUBSCRIPTION, request, timeout_seconds=10)
            assert caught.value.transient


# -- credentials and TLS ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.fixture
def key_file(tmp_path: Path, private_key: rsa.RSAPrivateKey) -> Path:
    path = tmp_path / "key.json"
    content = {
        "type": "service_account",
        "project_id": "shop",
        "private_key_id": "1",
        "private_key": pem(private_key).decode(),
        "client_email": "reader@shop.test",
        "token_uri": "http://127.0.0.1:9/never-asked",
        # Not Google's own, so that no look-up of access boundaries leaves this machine.
        "universe_domain": "shop.test",
    }
    path.write_text(json.dumps(content))
    return path


def certificate(key: rsa.RSAPrivateKey, host: str = "localhost", age_days: int = 1) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    begin = now - timedelta(days=age_days)
    builder = builder.not_valid_before(begin).not_valid_after(begin + timedelta(days=2))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


IN_A_FRESH_PROCESS = """
import os, sys
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.options.source import parse_read_options
endpoint, key_file = sys.argv[1:]
raw = {"projectid": "shop", "subscriptionid": "orders", "spoollocation": "/s", "endpoint": endpoint}
options = parse_read_options(raw | {"credentialsfile": key_file}, os.environ)
with PubSubClient(options.transport, options.credentials_file) as client:
    print(client.get_subscription(options.subscription).topic)
"""


def test_key_file_signs_calls_over_tls(tmp_path: Path, private_key: rsa.RSAPrivateKey, key_file: Path) -> None:
    """In a process of its own, because gRPC reads the variable for root certificates once."""
    roots = tmp_path / "roots.pem"
    roots.write_bytes(certificate(private_key))
    seen: list[str] = []

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            seen.extend(str(value) for key, value in details.invocation_metadata if key == "authorization")
            return grpc.unary_unary_rpc_method_handler(subscription_answer())

    with futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, [Handler()], options=[("grpc.so_reuseport", 0)])
        tls = grpc.ssl_server_credentials([(pem(private_key), roots.read_bytes())])
        port = server.add_secure_port("localhost:0", tls)
        server.start()
        try:
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", IN_A_FRESH_PROCESS, f"https://localhost:{port}", str(key_file)],
                env=os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots)},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        finally:
            server.stop(None).wait()
    assert (done.returncode, done.stdout.strip()) == (0, TOPIC), done.stderr
    assert len(seen) == 1
    assert seen[0].startswith("Bearer eyJ")


@pytest.mark.parametrize(
    ("trusted", "host", "age_days"),
    [
        pytest.param(False, "localhost", 1, id="unknown-authority"),
        pytest.param(True, "elsewhere.example", 1, id="other-name"),
        pytest.param(True, "localhost", 9, id="expired"),
    ],
)
def test_a_certificate_that_is_not_trusted_is_no_transient_error_and_names_the_options_of_authorities(
    trusted: bool, host: str, age_days: int, tmp_path: Path, private_key: rsa.RSAPrivateKey, key_file: Path
) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_bytes(certificate(private_key, host, age_days))
    with futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        port = server.add_secure_port(
            "localhost:0", grpc.ssl_server_credentials([(pem(private_key), roots.read_bytes())])
        )
        server.start()
        try:
            done = subprocess.run(
                [sys.executable, "-c", IN_A_FRESH_PROCESS, f"https://localhost:{port}", str(key_file)],
                env=os.environ | ({"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots)} if trusted else {}),
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        finally:
            server.stop(None).wait()
    error = done.stderr.splitlines()[-1]
    assert error.startswith("connectors.core.errors.CredentialsError: [TLS_CERTIFICATE] GetSubscription"), done.stderr
    assert "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" in error
    assert f"localhost:{port}" in error
    assert "[RETRYING]" not in done.stderr


def test_no_credentials_are_read_or_sent_without_tls(server: PubSubServer, tmp_path: Path) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    with PubSubClient(plain(server.endpoint), tmp_path / "nowhere.json") as client:
        assert client.get_subscription(SUBSCRIPTION).name == SUBSCRIPTION


CANARY = "canary-51b0e9"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        (CANARY, "is not JSON"),
        (f'["{CANARY}"]', "is not a JSON object"),
        (f'{{"secret": "{CANARY}"}}', "is not a file of Google credentials"),
        (f'{{"type": "{CANARY}"}}', "is not a file of Google credentials"),
        (
            json.dumps(
                {
                    "type": "service_account",
                    "client_email": "a@b",
                    "token_uri": "http://127.0.0.1:9/",
                    "private_key": f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n",
                }
            ),
            "is not a file of Google credentials",
        ),
        (f'{{"type": "authorized_user", "refresh_token": "{CANARY}"}}', "is not a file of Google credentials"),
    ],
)
def test_bad_key_file_is_an_error_with_its_path_and_none_of_its_contents(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CredentialsError) as caught:
        PubSubClient(GOOGLE, path)
    for part in ("credentialsFile", str(path), problem):
        assert part in str(caught.value)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_missing_default_credentials_are_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    with pytest.raises(CredentialsError, match="credentialsFile") as caught:
        PubSubClient(GOOGLE)
    assert "gcloud auth application-default login" in str(caught.value)
