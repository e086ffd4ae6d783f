"""Make the clients of confluent-kafka, with the tokens of SASL OAUTHBEARER.

An `OptionError` says that librdkafka refuses a setting.

The package is imported with the first client: that takes 0.1 s or more, and tasks on the fast path do without it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from connectors.core.errors import (
    ConnectorError,
    CredentialsError,
    OptionError,
    ServiceUnavailableError,
    SourceGoneError,
)
from connectors.core.options.providers import PERMANENT, load
from connectors.kafka.client.errors import AUTHENTICATION, connector_error, gone, setting_refused
from connectors.kafka.client.log import LOGGER
from connectors.kafka.offsets import refuse_nul
from connectors.kafka.options.client import ClientSettings

if TYPE_CHECKING:
    import confluent_kafka

T = TypeVar("T")
_log = logging.getLogger(__name__)

_LATE_SECONDS: Final = 5.0

OWN_CONSUMER_SETTINGS: Final = {
    "log.connection.close": "false",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
}
_NOT_OF_ADMINS: Final = ("fetch.", "queued.", "session.", "heartbeat.", "trans", "group.id", "isolation.", "check.crcs")
"""How the names begin of settings about which an admin client warns."""

_TOKEN_POLLS: Final = 500
_TOKEN_POLL_SECONDS: Final = 0.01
_SHORT: Final = 500
_SECRET: Final = re.compile(
    r"""((?:secret|passw\w*|token|assertion|signature|credential|\bkey)["']?\s*[=:]\s*["']?)[^\s"'&,;)}]+"""
    r"""|(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}|\beyJ[\w-]+\.[\w.-]+""",
    re.IGNORECASE,
)


def sdk() -> Any:
    import confluent_kafka  # noqa: PLC0415 - see the top

    return confluent_kafka


def admin_sdk() -> Any:
    import confluent_kafka.admin  # noqa: PLC0415 - see the top

    return confluent_kafka.admin


def client_exception() -> type[Exception]:
    """Return what confluent-kafka raises; its first argument is a ``KafkaError``."""
    kind: type[Exception] = sdk().KafkaException
    return kind


def open_consumer(settings: ClientSettings, own: Mapping[str, Any]) -> confluent_kafka.Consumer:
    """Make a consumer that joins no group and commits nothing; ``own`` settings win over the user's."""
    return _open(sdk().Consumer, settings, {**settings.revealed(), **OWN_CONSUMER_SETTINGS, **own})


def open_producer(settings: ClientSettings, own: Mapping[str, Any]) -> confluent_kafka.Producer:
    return _open(sdk().Producer, settings, {**settings.revealed(), **own})


def open_admin(settings: ClientSettings) -> Any:
    used = {name: value for name, value in settings.revealed().items() if not name.startswith(_NOT_OF_ADMINS)}
    return _open(admin_sdk().AdminClient, settings, used)


def _open(kind: Callable[[dict[str, Any]], T], settings: ClientSettings, used: dict[str, Any]) -> T:
    for name, value in used.items():
        refuse_nul(f"kafka.{name}", name, str(value))
    token = None if settings.token_provider is None else TokenCallback(settings.token_provider)
    try:
        client = kind({**used, "logger": LOGGER} | ({} if token is None else {"oauth_cb": token}))
    except client_exception() as error:
        problem = error.args[0]
        raise (setting_refused(problem.str()) if token is None else token.problem(problem)) from None
    if token is not None:
        token.serve_first(client)
    return client


def why_late(settings: ClientSettings, topic: str, error: ConnectorError) -> ConnectorError:
    """Return why a record was not delivered in time: its topic does not exist, or the error, with the option to raise.

    That is ``retryTimeout``, unless ``kafka.delivery.timeout.ms`` sets the limit.
    """
    rule = settings.outage_rule
    if settings.get("delivery.timeout.ms") == str(round(rule.seconds * 1000)):
        error = rule.ending(error)
    client = open_admin(settings)
    try:
        problem = client.list_topics(topic, timeout=_LATE_SECONDS).topics[topic].error
    except client_exception():
        return error
    absent = None if problem is None else connector_error(problem, topic)
    return gone(topic, of_rows=True) if isinstance(absent, SourceGoneError) else error


def check_settings(settings: ClientSettings) -> None:
    """Raise an `OptionError` for settings that librdkafka does not have, without a connection."""
    without_tokens = replace(settings, token_provider=None)
    open_consumer(without_tokens, {"group.id": settings.get("group.id") or "kafka_py"}).close()


def group_denied(consumer: Any) -> ConnectorError | None:
    """Return the error of a consumer that may not use its group: the client reports it once, and goes on trying."""
    message = consumer.poll(0)
    denied = message is not None and is_group_denial(message)
    return connector_error(message.error(), "the consumer group") if denied else None


def is_group_denial(message: Any) -> bool:
    """Return whether an event says that the right to use the group is missing."""
    error = message.error()
    return error is not None and error.name() == "GROUP_AUTHORIZATION_FAILED"


class TokenCallback:
    """What librdkafka calls when it needs a token; ``path`` is the ``module:Class`` that gives them."""

    def __init__(self, path: str) -> None:
        self._where = f"tokenProvider={path.partition('?')[0]}"
        make = load(path, "tokenProvider", "KAFKA_TOKEN_PROVIDER")
        try:
            self._provider = make()
        except Exception as error:  # noqa: BLE001 - a class of the user's may raise anything
            raise self._failed(error) from None
        self._called = False
        self._succeeded = False
        self._failure: Exception | None = None

    def __call__(self, _config: str) -> tuple[Any, ...]:
        """Return a token, when it expires, the principal, and extensions."""
        self._called = True
        try:
            token, expires, *rest = self._provider.token()
            principal = rest[0] if rest else ""
            extensions = rest[1] if len(rest) > 1 else {}
            refuse_nul("the token, the principal or an extension", token, principal, *extensions, *extensions.values())
            result = token, float(expires), principal, extensions
        except Exception as error:
            # The client only learns that there was an error, and asks again in ten seconds.
            self._failure = error
            if self._succeeded:
                _log.warning("%s The client uses the old token until it expires.", self._failed(error))
            raise
        self._succeeded, self._failure = True, None
        return result

    def problem(self, error: Any) -> ConnectorError:
        """Return our error for the ``KafkaError`` of a client that could not be made."""
        if error.name() not in AUTHENTICATION:
            return setting_refused(error.str())
        if self._failure is not None:
            return self._failed(self._failure)
        if not self._called:
            return OptionError("KAFKA_TOKEN_PROVIDER", "The client never asks for a token", self._where)
        if self._succeeded:
            what = "The token has expired, or the token or its extensions are not in the form of RFC 7628"
            return CredentialsError("KAFKA_TOKEN_UNUSABLE", what, self._where)
        return ServiceUnavailableError(
            "KAFKA_TOKEN_FAILED", "The class returned no token within ten seconds", self._where
        )

    def _failed(self, error: Exception) -> ConnectorError:
        text = _SECRET.sub(lambda match: f"{match[1] or match[2] or ''}...", str(error))[:_SHORT]
        kind = CredentialsError if isinstance(error, PERMANENT) else ServiceUnavailableError
        return kind(
            "KAFKA_TOKEN_FAILED", f"The class failed to return a token: {type(error).__name__}: {text}", self._where
        )

    def serve_first(self, client: Any) -> None:
        """Let a new client ask for its first token, so that its first request need not wait; newer clients do this."""
        for _ in range(_TOKEN_POLLS):
            if self._called:
                break
            client.poll(_TOKEN_POLL_SECONDS)
        if self._failure is not None:
            raise self._failed(self._failure)
