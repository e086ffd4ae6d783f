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
class _Meaning:
    """What a response means; ``action`` may name the ``{operation}``, and is that of ``codes.toml`` if empty."""

    error: type[ConnectorError]
    code: str
    action: str = ""


_THROTTLED: Final = _Meaning(ServiceUnavailableError, THROTTLED)
_THROTTLED_FOR_ALL: Final = _Meaning(
    ServiceUnavailableError,
    THROTTLED,
    "The limit of {operation} is one of calls a second, which all programs of the account share, or all readers of a "
    "consumer. Try again later, or have fewer of them start at the same time.",
)
_BY_RECORDS: Final = frozenset({"GetRecords", "GetShardIterator"})
"""The calls that minFetchPeriod is about."""
_CONSUMER_LIMIT: Final = _Meaning(ServiceUnavailableError, CONSUMER_LIMIT)
_RATE: Final = re.compile(r"\brate\b", re.IGNORECASE)
"""In the message of a LimitExceededException for too many calls, which RegisterStreamConsumer may be answered too."""
_UNAVAILABLE: Final = _Meaning(ServiceUnavailableError, "KINESIS_UNAVAILABLE")
_DENIED: Final = _Meaning(
    AccessDeniedError,
    "KINESIS_ACCESS_DENIED",
    "Allow kinesis:{operation} on the stream, and kms:Decrypt if it is encrypted.",
)
_ROLE_DENIED: Final = _Meaning(
    AccessDeniedError,
    "KINESIS_ACCESS_DENIED",
    "Allow sts:{operation} on the role, and let the role trust these credentials.",
)
_NAMES: Final = {
    _THROTTLED: f"ProvisionedThroughputExceededException LimitExceededException {aws.THROTTLED}",
    _UNAVAILABLE: aws.UNAVAILABLE,
    _Meaning(ServiceUnavailableError, EXPIRED_ITERATOR): "ExpiredIteratorException",
    _Meaning(ServiceUnavailableError, EXPIRED_LIST): "ExpiredNextTokenException",
    _Meaning(SourceGoneError, NOT_FOUND): "ResourceNotFoundException",
    _Meaning(ServiceUnavailableError, IN_USE): "ResourceInUseException",
    _Meaning(ConnectorError, INVALID_ARGUMENT): "InvalidArgumentException ValidationException ValidationError "
    "DryRunOperationException MalformedHttpRequestException RequestEntityTooLargeException UnknownOperationException",
    _DENIED: aws.ACCESS_DENIED,
    _Meaning(CredentialsError, CREDENTIALS): aws.KEYS_REFUSED,
    _Meaning(AccessDeniedError, "KINESIS_KEY"): "KMSDisabledException KMSInvalidStateException KMSNotFoundException "
    "KMSOptInRequired",
}
_MEANINGS: Final = {name: meaning for meaning, names in _NAMES.items() for name in names.split()}


def service_error(operation: str, where: str, response: Mapping[str, Any], role: str | None = None) -> ConnectorError:
    """Build the error for a response as botocore parses it; ``role`` is the one of the options.

    The operation may be ``AssumeRole``, which is made for another call.
    """
    error, name = response.get("Error", {}), aws.error_name(response)
    message = aws.cleaned(error.get("Message") or error.get("message") or "")
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    what = f"{operation} failed with {name or status}{message}"
    of_role = operation.startswith("AssumeRole")
    where = role or where if of_role else where
    if (meaning := _MEANINGS.get(name)) is None:
        if status < aws.SERVER_ERROR and status != aws.TOO_MANY_REQUESTS:
            return ConnectorError("KINESIS_CALL_FAILED", what, where)
        meaning = _THROTTLED if status == aws.TOO_MANY_REQUESTS else _UNAVAILABLE
    if of_role and meaning is _DENIED:
        meaning = _ROLE_DENIED
    elif operation == "RegisterStreamConsumer" and name == "LimitExceededException" and not _RATE.search(message):
        meaning = _CONSUMER_LIMIT
    elif meaning is _THROTTLED and operation not in _BY_RECORDS:
        meaning = _THROTTLED_FOR_ALL
    return meaning.error(meaning.code, what, where, meaning.action.format(operation=operation))


def client_error(operation: str, where: str, error: BaseException) -> ConnectorError:
    what, failure = f"{operation} failed: {type(error).__name__}{aws.cleaned(str(error))}", aws.client_failure(error)
    if failure is aws.ClientFailure.CERTIFICATE:
        return aws.certificate_error(what, where)
    if failure is aws.ClientFailure.NETWORK:
        return ServiceUnavailableError("KINESIS_UNAVAILABLE", what, where)
    if failure is aws.ClientFailure.NO_REGION:
        return OptionError("KINESIS_NO_REGION", "The AWS region is not set", "region")
    if failure is aws.ClientFailure.ILLEGAL_REGION:
        return OptionError("OPTION_ILLEGAL", what, "region", "Give the option region, such as eu-west-1.")
    if failure is aws.ClientFailure.ILLEGAL_PARAMETERS:
        return ConnectorError(INVALID_ARGUMENT, what, where)
    return CredentialsError(CREDENTIALS, what, where, aws.credentials_action(error))


def credentials_error(error: BaseException) -> CredentialsError:
    """Build the error for an exception that isn't botocore's own: a missing file, a program that returns nonsense."""
    what = f"Finding credentials failed: {type(error).__name__}{aws.cleaned(str(error))}"
    return CredentialsError(CREDENTIALS, what)
