"""What a failed call to Pub/Sub means to the user: from gRPC status codes to the errors of this pack."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    ServiceUnavailableError,
    SourceGoneError,
    declared_action,
)
from connectors.pubsub.options.client import EMULATOR_VARIABLE, GOOGLE, Transport

# Those that Google's clients retry, and two that proxies and restarting servers give.
_TRANSIENT: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "ABORTED", "RESOURCE_EXHAUSTED", "CANCELLED", "UNKNOWN"}
)
_ROLES: Final = {
    "GetSubscription": "roles/pubsub.viewer",
    "GetTopic": "roles/pubsub.viewer",
    "CreateSubscription": "roles/pubsub.editor",
    "CreateTopic": "roles/pubsub.editor",
    "DeleteTopic": "roles/pubsub.editor",
    "Publish": "roles/pubsub.publisher",
    "DeleteSubscription": "roles/pubsub.editor",
}
_OF_TOPICS: Final = frozenset({"CreateTopic", "DeleteTopic", "Publish"})
_PULL_ROLE: Final = "roles/pubsub.subscriber"

# How gRPC reports that the credentials gave no token; no retry helps after the OAuth errors of RFC 6749, section 5.2.
_PLUGIN_FAILED: Final = "Getting metadata from plugin failed"
_OAUTH_REFUSED: Final = re.compile(r"invalid_(request|client|grant|scope)|unauthorized_client|unsupported_grant_type")

_PROVIDER: Final = re.compile(r"\[CREDENTIAL_PROVIDER.*", re.DOTALL)
"""How the error of a credential provider stands in the text of gRPC: it is ours, without secrets."""

_CERTIFICATE: Final = re.compile(r"CERTIFICATE_VERIFY_FAILED|Peer name .* is not in peer certificate|Hostname Verif")
"""How gRPC, and the client of token endpoints, say that they do not trust a certificate; the status is UNAVAILABLE."""

_DETACHED: Final = re.compile(r"\b(is|was|has been) detached\b", re.IGNORECASE)

_SHOWN_CHARACTERS: Final = 300
_SECRETS: Final = re.compile(
    r"-----BEGIN.*?(-----END[^-]*-----|$)|Bearer\s+\S+|ya29\.\S+|eyJ[\w-]+\.[\w-]+(\.[\w-]+)?|\"private_key[^,}]*",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class RpcCall:
    """A call as its errors name it: the method, the full path of what it is about, and where it goes.

    `granted_on` is the full path of what its role is granted on; empty for `resource`.
    """

    method: str
    resource: str
    transport: Transport
    granted_on: str = ""


@dataclass(frozen=True, slots=True)
class AckFailures:
    """The ack ids of one request that had no effect, as exactly-once delivery reports them; transient: send again."""

    transient: frozenset[str] = frozenset()
    permanent: frozenset[str] = frozenset()


def connector_error(call: RpcCall, status: str, detail: str) -> ConnectorError:
    if _CERTIFICATE.search(detail):
        return _untrusted(call, detail)
    if detail.startswith(_PLUGIN_FAILED):
        return _no_token(call, detail)
    if status in _TRANSIENT:
        return _unavailable(call, status, detail)
    if status == "NOT_FOUND":
        return _not_found(call)
    return _refused(call, status, detail)


def topic_deleted(subscription: str) -> SourceGoneError:
    return SourceGoneError(
        "PUBSUB_TOPIC_DELETED",
        "The topic of the subscription was deleted, so nothing new will ever arrive",
        subscription,
    )


def _not_found(call: RpcCall) -> SourceGoneError:
    if call.method == "GetTopic":
        return topic_deleted(call.resource)
    if call.method == "Seek" and "/snapshots/" in call.resource:
        return SourceGoneError(
            "PUBSUB_SNAPSHOT_NOT_FOUND", "The snapshot or the subscription does not exist", call.resource
        )
    if call.method in {"CreateSubscription", "Publish", "DeleteTopic"}:
        return SourceGoneError("PUBSUB_TOPIC_NOT_FOUND", "The topic does not exist", call.resource)
    return SourceGoneError(
        "PUBSUB_SUBSCRIPTION_NOT_FOUND",
        "The subscription does not exist",
        call.resource,
        "Check the options projectId and subscriptionId. The subscription may have been deleted, or have expired.",
    )


def _refused(call: RpcCall, status: str, detail: str) -> ConnectorError:
    if status == "PERMISSION_DENIED":
        role = _ROLES.get(call.method, _PULL_ROLE)
        return AccessDeniedError(
            "PUBSUB_PERMISSION_DENIED",
            f"{call.method} is denied: it needs the role {role}",
            call.granted_on or call.resource,
            f"Grant {role} on it to the account that the query runs as.{_quoted(detail)}",
        )
    if status == "UNAUTHENTICATED":
        return _unauthenticated("The service does not accept the credentials", call)
    if status == "FAILED_PRECONDITION" and call.method not in _OF_TOPICS | {"CreateSubscription", "Seek"}:
        return _delivers_nothing(call, detail)
    if status == "ALREADY_EXISTS":
        return ConnectorError("PUBSUB_SUBSCRIPTION_EXISTS", "The subscription exists already", call.resource)
    if status == "INVALID_ARGUMENT" and call.method == "Publish":
        return ConnectorError(
            "PUBSUB_PUBLISH_REFUSED",
            "The service refuses a message of a request",
            call.resource,
            f"{declared_action('PUBSUB_PUBLISH_REFUSED')}{_quoted(detail)}",
        )
    return ConnectorError(
        "PUBSUB_CALL_FAILED", f"{call.method} failed with {status}", call.resource, _quoted(detail).strip()
    )


def _delivers_nothing(call: RpcCall, detail: str) -> SourceGoneError:
    """Build the error for a subscription that refuses to deliver; only the service's text may say why."""
    if _DETACHED.search(detail):
        return SourceGoneError(
            "PUBSUB_SUBSCRIPTION_DETACHED",
            f"The subscription delivers nothing: it was detached from its topic.{_quoted(detail)}".rstrip("."),
            call.resource,
        )
    name, _, project = call.resource.rpartition("/")[2], *call.resource.split("/", 2)[:2]
    return SourceGoneError(
        "PUBSUB_SUBSCRIPTION_NOT_PULLABLE",
        "The subscription refuses to deliver: it pushes or exports its messages, or it was detached",
        call.resource,
        f"Run gcloud pubsub subscriptions describe {name} --project={project}. If it pushes or exports, make it a pull "
        "subscription, and keep the spool and the checkpoint. Only if it says detached: true, create another "
        f"subscription, with a new spool and checkpoint.{_quoted(detail)}",
    )


def _untrusted(call: RpcCall, detail: str) -> ConnectorError:
    of_token = detail.startswith(_PLUGIN_FAILED)
    peer = "the token endpoint" if of_token else call.transport.target
    variable = "REQUESTS_CA_BUNDLE" if of_token else "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
    return CredentialsError(
        "TLS_CERTIFICATE",
        f"{call.method} failed: the certificate of {peer} is not accepted",
        f"{call.resource} at {call.transport.target}",
        f"Set the environment variable {variable} to a file with the authority that signed it, on the driver and each "
        "executor. A proxy that opens TLS has its own authority. If its name or date is wrong, check the option "
        f"endpoint and the clock.{'' if of_token else _quoted(detail)}",
    )


def _no_token(call: RpcCall, detail: str) -> ConnectorError:
    where = f"{call.method} at {call.transport.target}"
    if (provider := _PROVIDER.search(detail)) is not None:
        return ServiceUnavailableError(
            "PUBSUB_TOKEN_UNAVAILABLE", "The credentials gave no access token", where, provider[0]
        )
    # The text of the token endpoint may hold secrets, so it is not shown.
    if _OAUTH_REFUSED.search(detail):
        return _unauthenticated("The token endpoint refused the credentials", call)
    return ServiceUnavailableError("PUBSUB_TOKEN_UNAVAILABLE", "The credentials gave no access token", where)


def _unauthenticated(what: str, call: RpcCall) -> CredentialsError:
    return CredentialsError("PUBSUB_UNAUTHENTICATED", what, f"{call.method} at {call.transport.target}")


def _unavailable(call: RpcCall, status: str, detail: str) -> ConnectorError:
    transport = call.transport
    if transport.local and not transport.secure:
        advice = "Check that the emulator is running."
    elif transport.secure and transport.target != GOOGLE.target:
        advice = (
            f"Check the option endpoint. If it is an emulator without TLS, name it in {EMULATOR_VARIABLE}, or set "
            "allowInsecure=true."
        )
    else:
        advice = f"Check that this machine can reach {transport.target}."
    return ServiceUnavailableError(
        "PUBSUB_UNAVAILABLE",
        f"{call.method} failed with {status}",
        f"{call.resource} at {transport.target}",
        f"{advice}{_quoted(detail)}",
    )


def _quoted(detail: str) -> str:
    """Return the service's text in one line, cut and without secrets, to end an error text; empty if there is none."""
    text = " ".join(_SECRETS.sub("***", detail).split())
    if not text:
        return ""
    return f" The service says: {text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + '...'}"
