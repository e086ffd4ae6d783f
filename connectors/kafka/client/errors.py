"""Translate errors of librdkafka, by their names: so nothing of the client is imported here."""

from __future__ import annotations

import datetime as dt
import logging
import re
import time
from typing import Any, Final

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    OptionError,
    ServiceUnavailableError,
    SourceGoneError,
)
from connectors.kafka import FORMAT
from connectors.kafka.offsets import TOPIC_NAME

_log = logging.getLogger(__name__)

ENDED: Final = frozenset({"_FATAL", "_PURGE_INFLIGHT", "_PURGE_QUEUE"})
"""The errors of calls and records when a producer has ended; the reason comes elsewhere, and once."""
LATE: Final = "_MSG_TIMED_OUT"
"""The error of a record that was not delivered within ``kafka.delivery.timeout.ms``, for whatever reason."""
_GONE: Final = frozenset(
    {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID", "_NOENT"}
)
AUTHENTICATION: Final = frozenset({"SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION", "_SSL"})
_OF_TLS: Final = frozenset({"_SSL", "_TRANSPORT"})
"""A certificate is refused in the handshake, or after it as the end of the connection (TLS 1.3)."""
_NO_SASL: Final = re.compile(r"broker's supported mechanisms: *(?:\(|$)")
_NOT_RENEWED: Final = "Failed to acquire SASL OAUTHBEARER token"
_MAY_PASS: Final = re.compile(
    r"callback raised exception$"  # what the client makes of any error of a tokenProvider; the old token may be valid
    r"|handshake failed: Local: (?:Broker transport failure|Timed out)"  # the connection broke in the authentication
    # A token endpoint that fails; the text has its response, and not the status. The old token may be valid.
    rf"|{_NOT_RENEWED}(?!.*(?:invalid_client|invalid_grant|invalid_request|invalid_scope"
    r"|unauthorized_client|unsupported_grant_type|access_denied|40[013] (?:Bad Request|Unauthorized|Forbidden)))",
    re.DOTALL,
)
"""Errors of an authentication that nobody has refused."""
_CERTIFICATE_REFUSED: Final = re.compile(r"SSL alert number (?:4[2-689]|116)\b")
"""The alerts of TLS for a certificate: bad, unsupported, revoked, expired, unknown, of an unknown authority, without
access, missing."""
_UNTRUSTED: Final = re.compile(r"certificate verify failed|certificate could not be verified|SSL certificate problem")
"""What OpenSSL says of a broker's certificate, and curl of that of a token endpoint."""
_OLD_TOKEN: Final = re.compile(r'"invalid_token"|OAUTHBEARER mechanism handshake failed')
"""What an expired token gives, too. The client asks for a new one for up to a minute."""
_FRESH_SECONDS: Final = 300.0
_DAMAGED: Final = frozenset({"_BAD_MSG", "_BAD_COMPRESSION"})
_FENCED: Final = frozenset({"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"})
DIFFERENT_RECORD: Final = "_INVALID_DIFFERENT_RECORD"
"""The error of a record that was sent with an invalid one, from brokers that name the latter."""
_NO_CHECKSUM: Final = re.compile(r"original 0x0\b")
_INVALID: Final = "KAFKA_RECORD_INVALID", "The broker refuses a record as invalid"
_TOO_LARGE: Final = "KAFKA_RECORD_TOO_LARGE", "A record is larger than the client or the topic allows"
_UNSUPPORTED: Final = "KAFKA_UNSUPPORTED", "The brokers do not have what this needs"
_BY_NAME: Final = {
    "_UNSUPPORTED_FEATURE": _UNSUPPORTED,
    "UNSUPPORTED_VERSION": _UNSUPPORTED,
    "INVALID_RECORD": _INVALID,
    DIFFERENT_RECORD: _INVALID,
    "INVALID_TIMESTAMP": ("KAFKA_TIMESTAMP", "The broker does not accept the timestamp of a record"),
    "TOPIC_EXCEPTION": (
        "KAFKA_TOPIC_NAME",
        "The topic of a record cannot be the name of a topic, or is one that takes no records",
    ),
    "MSG_SIZE_TOO_LARGE": _TOO_LARGE,
    "RECORD_LIST_TOO_LARGE": _TOO_LARGE,
    "INVALID_MSG_SIZE": _TOO_LARGE,
}
"""By librdkafka's name of an error, most of them of records: our code, and what it means."""
_UNAVAILABLE: Final = frozenset(
    {
        "_ALL_BROKERS_DOWN",
        "_MSG_TIMED_OUT",
        "_RESOLVE",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_TRANSPORT",
        "_WAIT_CACHE",
        "_WAIT_COORD",
        "BROKER_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "LISTENER_NOT_FOUND",
        "NETWORK_EXCEPTION",
        "NOT_CONTROLLER",
        "NOT_COORDINATOR",
        "NOT_LEADER_FOR_PARTITION",
        "OFFSET_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_LEADER_EPOCH",
        "UNSTABLE_OFFSET_COMMIT",
    }
)


_OF_ROWS: Final = frozenset(
    {"KAFKA_ERROR", "KAFKA_RECORD_INVALID", "KAFKA_RECORD_TOO_LARGE", "KAFKA_TIMESTAMP", "KAFKA_TOPIC_NAME"}
)
"""The codes of errors that rows cause, or may cause."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LATEST_MS: Final = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(milliseconds=1)
"""The last millisecond that Python's datetime has."""


class ConnectionErrors:
    """The last error of a client's connections, for calls and records whose own error does not name the cause.

    Attributes:
        refusal: the last refused authentication: of the present call, for a client that has worked; of its whole life,
            for a client that never has. The refusal of an expired token does not count: a renewed one may be accepted.
    """

    def __init__(self) -> None:
        self.refusal: CredentialsError | None = None
        self._last: ConnectorError | None = None
        self._text = ""
        self._received_at = 0.0
        self._has_worked = False
        self._has_warned = False

    def receive(self, name: str, text: str) -> None:
        problem = named_error(name, text, "kafka.bootstrap.servers", retriable=False)
        if isinstance(problem, CredentialsError):
            if not self._has_worked or _OLD_TOKEN.search(text) is None:
                self.refusal = problem
            elif self._last is not None and self._text.startswith(_NOT_RENEWED):
                return  # a consequence
        elif name == "_ALL_BROKERS_DOWN":
            self._warn()
            return
        elif not isinstance(problem, ServiceUnavailableError):
            return
        self._last, self._text, self._received_at = problem, text, time.monotonic()

    def receive_error(self, error: Any) -> None:
        """Record a ``KafkaError``; the ``error_cb`` of a client."""
        self.receive(error.name(), error.str())

    def _warn(self) -> None:
        """Log once what keeps a client from its first connection: its calls wait for minutes before they fail."""
        if self._last is not None and not self._has_worked and not self._has_warned:
            self._has_warned = True
            _log.warning("[KAFKA_BROKERS_DOWN] The client can reach no broker. It keeps trying. %s", self._last)

    def begin(self) -> None:
        """Begin a call: an authentication that was refused may succeed now, as with a renewed token."""
        if self._has_worked:  # a client that was never accepted has reason enough to give up at once
            self.refusal = None

    def forget(self) -> None:
        self._has_worked = True
        self.refusal = self._last = None

    def explain(self, problem: ConnectorError) -> ConnectorError:
        """Return an error with its cause: the text of the last one, or a refused authentication in its place."""
        fresh = time.monotonic() - self._received_at < _FRESH_SECONDS
        if self._last is None or not fresh or not isinstance(problem, ServiceUnavailableError):
            return problem
        if isinstance(self._last, CredentialsError):
            return self._last
        what = f"{problem.what}; the client last reported: {self._text}"
        return type(problem)(problem.code, what, problem.where, problem.action)


def record_place(topic: str, partition: int | None) -> str:
    """Return where a record was to go; it may have had no partition yet."""
    return topic if partition is None or partition < 0 else f"{topic}-{partition}"


def connector_error(error: Any, where: str) -> ConnectorError:
    return named_error(error.name(), str(error.str()), where, retriable=error.retriable())


def named_error(name: str, text: str, where: str, *, retriable: bool) -> ConnectorError:
    """Return our error for one of librdkafka, by its name and text, and whether librdkafka says that it may pass."""
    if name in _GONE:
        return gone(where)
    if (refused := _refused_authentication(name, text, where)) is not None:
        return refused
    if name.endswith("AUTHORIZATION_FAILED"):
        return AccessDeniedError("KAFKA_ACCESS_DENIED", f"Kafka denies a request: {text}", where)
    if name not in _FENCED | ENDED and (name in _UNAVAILABLE | AUTHENTICATION or retriable):
        return ServiceUnavailableError("KAFKA_UNAVAILABLE", f"Kafka does not respond: {text}", where)
    return _final_error(name, text, where)


def _refused_authentication(name: str, text: str, where: str) -> CredentialsError | None:
    if name in _OF_TLS and _CERTIFICATE_REFUSED.search(text):
        what = f"Kafka does not accept this client's certificate, or requires one: {text}"
        return CredentialsError("KAFKA_LOG_IN", what, where)
    if name in _OF_TLS | AUTHENTICATION and _UNTRUSTED.search(text):
        what = f"The client cannot verify a server's certificate: {text}"
        return CredentialsError("KAFKA_CERTIFICATE_UNTRUSTED", what, where)
    if name not in AUTHENTICATION or (name == "_AUTHENTICATION" and _MAY_PASS.search(text)):
        return None
    action = ""
    if _NO_SASL.search(text):
        action = (
            "This listener does not use SASL: check the port in kafka.bootstrap.servers, and kafka.security.protocol."
        )
    return CredentialsError("KAFKA_LOG_IN", f"Kafka refused the authentication: {text}", where, action)


def _final_error(name: str, text: str, where: str) -> ConnectorError:
    if name in _FENCED:
        return ConnectorError("KAFKA_FENCED", "Another attempt of this task has taken over its transactions", where)
    if name in ENDED:
        return ConnectorError(
            "KAFKA_PRODUCER_FAILED", "The client has stopped the producer, and does not say why", where
        )
    if name in _DAMAGED:
        what = "The checksum of records from the broker is wrong: a disk or the network has changed bytes"
        if _NO_CHECKSUM.search(text):
            what = "Records from the broker have no checksum, like those of a transaction in a mock cluster"
        return ConnectorError("KAFKA_RECORDS_DAMAGED", f"{what}: {text}", where)
    if name in _BY_NAME:
        code, what = _BY_NAME[name]
        return ConnectorError(code, f"{what}: {text} ({name})", where)
    if name == "INVALID_TRANSACTION_TIMEOUT":
        what = "The brokers allow only shorter transactions than the sink asks for, 900000 ms by default"
        return ConnectorError("KAFKA_TRANSACTION_TIMEOUT", what, where)
    return ConnectorError("KAFKA_ERROR", f"Kafka refuses a request: {text} ({name})", where)


def gone(where: str, *, of_rows: bool = False) -> SourceGoneError:
    """Return the error for a topic or partition that does not exist; rows may name it in a column."""
    what = "This topic or partition does not exist" + ", and a row is to be written to it" * of_rows
    return SourceGoneError("KAFKA_UNKNOWN_TOPIC_OR_PARTITION", what, where)


def is_mock(cluster_id: str) -> bool:
    """Return whether a cluster is librdkafka's mock cluster, which has no transactions."""
    return cluster_id.startswith("mockCluster")


def no_transactions(where: str) -> ConnectorError:
    """Return the error for exactly-once writes to librdkafka's mock cluster, which would take them all the same."""
    what = "These brokers are librdkafka's mock cluster, which has no transactions"
    return ConnectorError("KAFKA_UNSUPPORTED", what, where)


def unconfirmed(where: str) -> ServiceUnavailableError:
    what = (
        "The client considers records written, but no broker has confirmed them. Most often their partition has a new "
        "leader, or its replicas are slow"
    )
    return ServiceUnavailableError("KAFKA_WRITE_UNCONFIRMED", what, where)


def setting_refused(text: str) -> OptionError:
    """Return the error for a refused setting; librdkafka shows its value only if that is one of a closed set."""
    what = f"The client refuses a setting: {text}"
    if "No provider for SASL mechanism GSSAPI" in text:
        what = "The mechanism is GSSAPI, which is Kerberos. It is also the default of kafka.sasl.mechanism"
    return OptionError("KAFKA_SETTING", what, FORMAT)


class RefusedRows:
    """The rows of a partition that were refused with one error, by librdkafka's name and text of it.

    An error of Produce is one of a whole request: what its rows have in common is all that can be said. Their contents
    are never part of an error.
    """

    def __init__(self, name: str, text: str, topic: str, partition: int | None) -> None:
        # Once a broker has refused a name, the client only says of it that there is no such topic.
        if name == "_UNKNOWN_TOPIC" and (topic in {".", ".."} or not TOPIC_NAME.fullmatch(topic)):
            name, text = "TOPIC_EXCEPTION", "Invalid topic"
        self.name, self.topic, self.partition = name, topic, partition
        self._text = text
        self._rows = self._without_key = self._bytes = self._most_bytes = 0
        self._largest = ""

    def add(self, key_bytes: int | None, value_bytes: int | None) -> None:
        """Add a row: the length of its key and value, None for null, and its timestamp, 0 for the time of writing."""
        size = (key_bytes or 0) + (value_bytes or 0)
        self._rows += 1
        self._bytes += size
        self._without_key += key_bytes is None
        if not self._largest or size > self._most_bytes:
            self._most_bytes, self._largest = size, f"{_sized('key', key_bytes)} and {_sized('value', value_bytes)}"

    def accepts(self, name: str, topic: str, partition: int | None) -> bool:
        return (name, topic, partition) == (self.name, self.topic, self.partition)

    def replaced_by(self, name: str) -> bool:
        """Return whether this only says that another record of the request is at fault, and an error is of that one."""
        return self.name == DIFFERENT_RECORD != name

    def error(self, times: tuple[int, int] = (0, 0)) -> ConnectorError:
        """Return our error, with the facts of the rows where they may have caused it.

        `times` are the first and the last timestamp of the task's rows in milliseconds, 0 where they have none.
        """
        where = record_place(self.topic, self.partition)
        error = named_error(self.name, self._text, where, retriable=False)
        if isinstance(error, SourceGoneError):
            return gone(where, of_rows=True)
        if error.code not in _OF_ROWS or not self._rows:
            return error
        return type(error)(error.code, f"{error.what}. {self._facts()}. {_stamped(*times)}", where, error.action)

    def _facts(self) -> str:
        if self._rows == 1:
            return f"The row has {self._largest}"
        return (
            f"The request has {self._rows} rows with {self._bytes} bytes in keys and values, {self._without_key} of "
            f"them without a key; the largest has {self._largest}"
        )


def _stamped(first: int, last: int) -> str:
    if not first:
        return "The rows have the time of writing as timestamp"
    times = [
        (_EPOCH + dt.timedelta(milliseconds=min(time_ms, _LATEST_MS))).isoformat(timespec="milliseconds")
        for time_ms in (first, last)
    ]
    if first == last:
        return f"The rows written so far have the timestamp {times[0]}"
    return f"The rows written so far have timestamps from {times[0]} to {times[1]}"


def size_of(content: bytes | None) -> int | None:
    return None if content is None else len(content)


def _sized(word: str, length: int | None) -> str:
    return f"a null {word}" if length is None else f"a {word} of {length} byte{'s' * (length != 1)}"
