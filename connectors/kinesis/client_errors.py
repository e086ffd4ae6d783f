"""What errors of the service and of botocore mean to a user; by their names, so that no SDK is imported here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    OptionError,
    ServiceUnavailableError,
    SourceGoneError,
)

__all__ = ["EXPIRED_ITERATOR", "INVALID_ARGUMENT", "IN_USE", "NOT_FOUND", "THROTTLED", "client_error", "service_error"]

EXPIRED_ITERATOR: Final = "KINESIS_ITERATOR_EXPIRED"
INVALID_ARGUMENT: Final = "KINESIS_INVALID_ARGUMENT"
IN_USE: Final = "KINESIS_IN_USE"
NOT_FOUND: Final = "KINESIS_NOT_FOUND"
THROTTLED: Final = "KINESIS_THROTTLED"

_SAID_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class _Kind:
    """What an answer means: our error, and what the user can do; that may name ``{service}`` and ``{operation}``."""

    error: type[ConnectorError]
    code: str
    action: str = ""


_THROTTLED: Final = _Kind(ServiceUnavailableError, THROTTLED, "Others may read this stream too; see minFetchPeriod.")
_UNAVAILABLE: Final = _Kind(ServiceUnavailableError, "KINESIS_UNAVAILABLE", "Try again later.")
_EXPIRED: Final = _Kind(ServiceUnavailableError, EXPIRED_ITERATOR)
_GONE: Final = _Kind(SourceGoneError, NOT_FOUND, "Check the name, the region and the account of the stream.")
_IN_USE: Final = _Kind(ServiceUnavailableError, IN_USE, "Give each query a consumerName of its own.")
_INVALID: Final = _Kind(ConnectorError, INVALID_ARGUMENT, "Check the options.")
_DENIED: Final = _Kind(
    AccessDeniedError,
    "KINESIS_ACCESS_DENIED",
    "Allow {service}:{operation} on it, and kms:Decrypt if it is encrypted.",
)
_REFUSED: Final = _Kind(CredentialsError, "KINESIS_CREDENTIALS", "Check the keys, the profile or the role.")
_KEY: Final = _Kind(AccessDeniedError, "KINESIS_KEY", "Mend the key that encrypts the stream.")

_NAMES: Final = {
    _THROTTLED: "ProvisionedThroughputExceededException LimitExceededException ThrottlingException Throttling "
    "RequestLimitExceeded TooManyRequestsException KMSThrottlingException",
    _UNAVAILABLE: "InternalFailure InternalFailureException InternalServerError ServiceUnavailable "
    "ServiceUnavailableException RequestTimeout RequestTimeoutException RequestExpired",
    _EXPIRED: "ExpiredIteratorException",
    _GONE: "ResourceNotFoundException",
    _IN_USE: "ResourceInUseException",
    _INVALID: "InvalidArgumentException ValidationException",
    _DENIED: "AccessDenied AccessDeniedException KMSAccessDeniedException",
    _REFUSED: "UnrecognizedClientException InvalidClientTokenId InvalidSignatureException SignatureDoesNotMatch "
    "IncompleteSignature IncompleteSignatureException MissingAuthenticationToken MissingAuthenticationTokenException "
    "ExpiredToken ExpiredTokenException OptInRequired NotAuthorized",
    _KEY: "KMSDisabledException KMSInvalidStateException KMSNotFoundException KMSOptInRequired",
}
_KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_SERVER_ERROR: Final = 500
_NO_CREDENTIALS: Final = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}
_NO_PROFILE: Final = {"ProfileNotFound", "ConfigNotFound", "ConfigParseError", "InfiniteLoopConfigError"}
_SECRETS: Final = re.compile(
    r"(?:AKIA|ASIA)[A-Z0-9]{8,}|(?:Credential|Signature|X-Amz-Security-Token|aws_secret_access_key)=[^\s,&]+",
    re.IGNORECASE,
)


def service_error(operation: str, where: str, response: Mapping[str, Any]) -> ConnectorError:
    """Our error for an answer of the service.

    Args:
        operation: the call, such as ``GetRecords``.
        where: the stream or shard it is about.
        response: what botocore made of the answer.
    """
    error = response.get("Error", {})
    name = str(error.get("Code", "")).rpartition("#")[2]
    said = _said(error.get("Message") or error.get("message") or "")
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    what = f"{operation} was answered {name or status}{said}"
    if (kind := _KINDS.get(name)) is None:
        if status < _SERVER_ERROR:
            return ConnectorError("KINESIS_CALL_FAILED", what, where)
        kind = _UNAVAILABLE
    service = "sts" if operation == "AssumeRole" else "kinesis"
    return kind.error(kind.code, what, where, kind.action.format(service=service, operation=operation))


def client_error(operation: str, where: str, error: BaseException) -> ConnectorError:
    """Our error for one that botocore raises without an answer of the service."""
    name = type(error).__name__
    what = f"{operation} failed: {name}{_said(str(error))}"
    if name in _NO_CREDENTIALS:
        return CredentialsError(
            "KINESIS_CREDENTIALS", what, where, "Give keys, a profile or a role, or set up the default chain."
        )
    if name in _NO_PROFILE:
        return CredentialsError(
            "KINESIS_CREDENTIALS", what, where, "Check the option profile and the shared AWS files."
        )
    if name == "NoRegionError":
        return OptionError(
            "KINESIS_NO_REGION", "No region is known", "region", "Give the option region, or set AWS_REGION."
        )
    if name == "ParamValidationError":
        return ConnectorError(INVALID_ARGUMENT, what, where, "Check the options.")
    return ServiceUnavailableError("KINESIS_UNAVAILABLE", what, where, "Check the network, endpointUrl and region.")


def _said(text: str) -> str:
    """What the service said, without what may be a secret."""
    cleaned = _SECRETS.sub("***", " ".join(text.split()))[:_SAID_CHARACTERS].rstrip(". ")
    return f": {cleaned}" if cleaned else ""
