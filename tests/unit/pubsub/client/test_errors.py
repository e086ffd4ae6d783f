"""What a refusal means: advice that costs data is given only where it is certain."""

from __future__ import annotations

import pytest

from connectors.pubsub.client.errors import RpcCall, connector_error
from connectors.pubsub.options.client import GOOGLE

NAME = "projects/shop/subscriptions/orders"
METHODS = ["StreamingPull", "Pull", "Acknowledge", "ModifyAckDeadline"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "detail",
    [
        "",
        "This method is not supported for this subscription type.",
        "Subscription is a push subscription.",
        "The subscription pushes to an endpoint, or may have been detached.",
        "Something that nobody knows",
    ],
)
def test_a_subscription_that_delivers_nothing_keeps_its_spool_until_it_is_known_why(method: str, detail: str) -> None:
    error = connector_error(RpcCall(method, NAME, GOOGLE), "FAILED_PRECONDITION", detail)
    assert error.code == "PUBSUB_SUBSCRIPTION_NOT_PULLABLE"
    assert "gcloud pubsub subscriptions describe orders --project=shop" in error.action
    assert error.action.index("describe") < error.action.index("pull") < error.action.index("detached: true")
    assert "keep" in error.action
    assert not error.transient
    assert detail.rstrip(".") in str(error)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "detail", ["Subscription is detached (resource=orders).", "The subscription was detached.", "It has been detached"]
)
def test_a_subscription_that_the_service_calls_detached_needs_a_new_spool(method: str, detail: str) -> None:
    error = connector_error(RpcCall(method, NAME, GOOGLE), "FAILED_PRECONDITION", detail)
    assert error.code == "PUBSUB_SUBSCRIPTION_DETACHED"
    assert "new spool" in error.action


@pytest.mark.parametrize(
    ("method", "status"),
    [(method, status) for method in METHODS for status in ("PERMISSION_DENIED", "INVALID_ARGUMENT", "OUT_OF_RANGE")]
    + [("Seek", "FAILED_PRECONDITION"), ("Publish", "FAILED_PRECONDITION"), ("Pull", "NOT_FOUND")],
)
def test_no_other_refusal_advises_a_new_spool(method: str, status: str) -> None:
    error = connector_error(RpcCall(method, NAME, GOOGLE), status, "")
    assert "new spool" not in str(error)
    assert "new checkpoint" not in str(error)
