"""What errors of the service and of botocore mean to a user; by their names, so that no SDK is imported here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from connectors.core.aws import errors as aws
from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    OptionError,
    ServiceUnavailableError,
    SourceGoneError,
)

CONSUMER_LIMIT: Final = "KINESIS_CONSUMER_LIMIT"
CREDENTIALS: Final = "KINESIS_CREDENTIALS"
EXPIRED_ITERATOR: Final = "KINESIS_ITERATOR_EXPIRED"
EXPIRED_LIST: Final = "KINESIS_LIST_EXPIRED"
INVALID_ARGUMENT: Final = "KINESIS_INVALID_ARGUMENT"
IN_USE: Final = "KINESIS_IN_USE"
NOT_FOUND: Final = "KINESIS_NOT_FOUND"
THROTTLED: Final = "KINESIS_THROTTLED"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a response means: our error, and what the user can do, which may name the ``{operation}``."""

    error: type[ConnectorError]
    code: str
    action: str = ""


_THROTTLED: Final = _Kind(ServiceUnavailableError, THROTTLED, "Others may read this stream too; see minFetchPeriod.")
_THROTTLED_FOR_ALL: Final = _Kind(
    ServiceUnavailableError,
    THROTTLED,
    "The limit of {operation} is one of calls a second, which all programs of the account share, or all readers of a "
    "consumer. Try again later, or have fewer of them start at the same time.",
)
_BY_RECORDS: Final = frozenset({"GetRecords", "GetShardIterator"})
"""The calls that minFetchPeriod is about."""
_CONSUMER_LIMIT: Final = _Kind(
    ServiceUnavailableError,
    CONSUMER_LIMIT,
    "A stream has up to 20 registered consumers, or 50 with on-demand Advantage, of which 5 are created at a time. "
    "Deregister consumers that nothing uses (aws kinesis list-stream-consumers shows them), or have the query use one "
    "that is registered: consumerARN.",
)
_RATE: Final = re.compile(r"\brate\b", re.IGNORECASE)
"""In the message of a LimitExceededException for too many calls, which RegisterStreamConsumer may be answered too."""
_UNAVAILABLE: Final = _Kind(ServiceUnavailableError, "KINESIS_UNAVAILABLE", "Try again later.")
_EXPIRED: Final = _Kind(
    ServiceUnavailableError,
    EXPIRED_ITERATOR,
    "Each retry took a new iterator, which is good for five minutes: see what delays {operation} so long on this "
    "machine, such as a paused container or a slow proxy.",
)
_LIST_EXPIRED: Final = _Kind(
    ServiceUnavailableError,
    EXPIRED_LIST,
    "Each retry listed from the start, and took longer than a list is valid, which is five minutes: see "
    "what delays {operation}.",
)
_GONE: Final = _Kind(SourceGoneError, NOT_FOUND, "Check the name, the region and the account of the stream.")
_IN_USE: Final = _Kind(ServiceUnavailableError, IN_USE, "Give each query a consumerName of its own.")
_INVALID: Final = _Kind(ConnectorError, INVALID_ARGUMENT, "Check the options.")
_NO_ACCESS: Final = "KINESIS_ACCESS_DENIED"
_DENIED: Final = _Kind(
    AccessDeniedError, _NO_ACCESS, "Allow kinesis:{operation} on it, and kms:Decrypt if it is encrypted."
)
_REFUSED: Final = _Kind(CredentialsError, CREDENTIALS, "Check the keys, the profile or the role.")
_KEY: Final = _Kind(AccessDeniedError, "KINESIS_KEY", "Repair the key that encrypts the stream.")
_OF_ROLE: Final = {
    _DENIED: _Kind(
        AccessDeniedError, _NO_ACCESS, "Allow sts:{operation} on the role, and let the role trust these credentials."
    ),
    _THROTTLED: _Kind(ServiceUnavailableError, THROTTLED, "Try again later."),
}

_NAMES: Final = {
    _THROTTLED: f"ProvisionedThroughputExceededException LimitExceededException {aws.THROTTLED}",
    _UNAVAILABLE: aws.UNAVAILABLE,
    _EXPIRED: "ExpiredIteratorException",
    _LIST_EXPIRED: "ExpiredNextTokenException",
    _GONE: "ResourceNotFoundException",
    _IN_USE: "ResourceInUseException",
    _INVALID: "InvalidArgumentException ValidationException ValidationError DryRunOperationException "
    "MalformedHttpRequestException RequestEntityTooLargeException UnknownOperationException",
    _DENIED: aws.ACCESS_DENIED,
    _REFUSED: aws.KEYS_REFUSED,
    _KEY: "KMSDisabledException KMSInvalidStateException KMSNotFoundException KMSOptInRequired",
}
_KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def service_error(operation: str, where: str, response: Mapping[str, Any], role: str | None = None) -> ConnectorError:
    """Build the error for a response of the service, as botocore parses it.

    ``where`` names the stream or shard, and ``role`` is that of the options. The operation may be ``AssumeRole``, which
    is made for another one.
    """
    error, name = response.get("Error", {}), aws.error_name(response)
    message = aws.cleaned(error.get("Message") or error.get("message") or "")
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    what = f"{operation} was answered {name or status}{message}"
    of_role = operation.startswith("AssumeRole")
    where = role or where if of_role else where
    if (kind := _KINDS.get(name)) is None:
        if status < aws.SERVER_ERROR and status != aws.TOO_MANY_REQUESTS:
            return ConnectorError("KINESIS_CALL_FAILED", what, where)
        kind = _THROTTLED if status == aws.TOO_MANY_REQUESTS else _UNAVAILABLE
    if of_role:
        kind = _OF_ROLE.get(kind, kind)
    elif operation == "RegisterStreamConsumer" and name == "LimitExceededException" and not _RATE.search(message):
        kind = _CONSUMER_LIMIT
    elif kind is _THROTTLED and operation not in _BY_RECORDS:
        kind = _THROTTLED_FOR_ALL
    return kind.error(kind.code, what, where, kind.action.format(operation=operation))


def client_error(operation: str, where: str, error: BaseException) -> ConnectorError:
    """Build the error for one that botocore raises without a response of the service."""
    what, failure = f"{operation} failed: {type(error).__name__}{aws.cleaned(str(error))}", aws.client_failure(error)
    if failure is aws.ClientFailure.CERTIFICATE:
        return aws.certificate_error(what, where)
    if failure is aws.ClientFailure.NETWORK:
        return ServiceUnavailableError("KINESIS_UNAVAILABLE", what, where, "Check the network, endpointUrl and region.")
    if failure is aws.ClientFailure.NO_REGION:
        action = "Give the option region, or set AWS_REGION."
        return OptionError("KINESIS_NO_REGION", "No region is known", "region", action)
    if failure is aws.ClientFailure.ILLEGAL_REGION:
        return OptionError("OPTION_ILLEGAL", what, "region", "Give the option region, such as eu-west-1.")
    if failure is aws.ClientFailure.ILLEGAL_PARAMETERS:
        return ConnectorError(INVALID_ARGUMENT, what, where, "Check the options.")
    return CredentialsError(CREDENTIALS, what, where, aws.credentials_action(error))


def credentials_error(error: BaseException) -> CredentialsError:
    """Build the error for one that is not botocore's own: a missing file, a program that returns nonsense."""
    what = f"Finding credentials failed: {type(error).__name__}{aws.cleaned(str(error))}"
    action = "Check where they come from: the shared AWS files, credential_process, the token's file, the container."
    return CredentialsError(CREDENTIALS, what, "", action)
