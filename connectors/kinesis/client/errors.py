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

__all__ = [
    "CREDENTIALS",
    "EXPIRED_ITERATOR",
    "EXPIRED_LIST",
    "INVALID_ARGUMENT",
    "IN_USE",
    "NOT_FOUND",
    "THROTTLED",
    "certificate_error",
    "client_error",
    "credentials_error",
    "refuses_keys",
    "service_error",
]

CREDENTIALS: Final = "KINESIS_CREDENTIALS"
EXPIRED_ITERATOR: Final = "KINESIS_ITERATOR_EXPIRED"
EXPIRED_LIST: Final = "KINESIS_LIST_EXPIRED"
INVALID_ARGUMENT: Final = "KINESIS_INVALID_ARGUMENT"
IN_USE: Final = "KINESIS_IN_USE"
NOT_FOUND: Final = "KINESIS_NOT_FOUND"
THROTTLED: Final = "KINESIS_THROTTLED"

_SHOWN_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a response means: our error, and what the user can do, which may name the ``{operation}``."""

    error: type[ConnectorError]
    code: str
    action: str = ""


_THROTTLED: Final = _Kind(ServiceUnavailableError, THROTTLED, "Others may read this stream too; see minFetchPeriod.")
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
    "Each retry listed from the start, and took longer than a list is valid, which is five minutes: raise "
    "maxShardsPerDescribe, or see what delays {operation}.",
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
    _THROTTLED: "ProvisionedThroughputExceededException LimitExceededException ThrottlingException Throttling "
    "RequestLimitExceeded TooManyRequestsException KMSThrottlingException SlowDown ThrottledException "
    "RequestThrottledException RequestThrottled BandwidthLimitExceeded EC2ThrottledException "
    "PriorRequestNotComplete TransactionInProgressException",
    _UNAVAILABLE: "InternalFailure InternalFailureException InternalServerError ServiceUnavailable "
    "ServiceUnavailableException RequestTimeout RequestTimeoutException RequestExpired RequestAbortedException "
    "IDPCommunicationError",
    _EXPIRED: "ExpiredIteratorException",
    _LIST_EXPIRED: "ExpiredNextTokenException",
    _GONE: "ResourceNotFoundException",
    _IN_USE: "ResourceInUseException",
    _INVALID: "InvalidArgumentException ValidationException ValidationError DryRunOperationException "
    "MalformedHttpRequestException RequestEntityTooLargeException UnknownOperationException",
    _DENIED: "AccessDenied AccessDeniedException KMSAccessDeniedException",
    _REFUSED: "UnrecognizedClientException InvalidClientTokenId InvalidSignatureException SignatureDoesNotMatch "
    "IncompleteSignature IncompleteSignatureException MissingAuthenticationToken MissingAuthenticationTokenException "
    "ExpiredToken ExpiredTokenException OptInRequired NotAuthorized InvalidIdentityToken IDPRejectedClaim "
    "RegionDisabledException MalformedPolicyDocument PackedPolicyTooLarge UnauthorizedException",
    _KEY: "KMSDisabledException KMSInvalidStateException KMSNotFoundException KMSOptInRequired",
}
_KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERROR: Final = 500
_STALE_KEYS: Final = {"ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException", "InvalidClientTokenId"}
_NETWORK: Final = {
    "HTTPClientError",
    "ConnectionError",
    "IncompleteReadError",
    "ResponseParserError",
    "ResponseStreamingError",
}
_CERTIFICATE: Final = re.compile(r"certificate.verify.failed|doesn't match|No such file", re.IGNORECASE)
"""What an SSLError says of a certificate that is not trusted; of a connection that was cut it says something else."""
_NO_CREDENTIALS: Final = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}
_LOGIN: Final = {"SSOError", "TokenRetrievalError", "NoAuthTokenError", "LoginError", "RefreshWithMFAUnsupportedError"}
_SECRETS: Final = re.compile(
    r"(?:AKIA|ASIA)[A-Z0-9]{8,}|(?<=Invalid header value ).*|"
    r"(?:Credential|Signature|X-Amz-Security-Token|aws_secret_access_key)=[^\s,&]+",
    re.IGNORECASE,
)


def service_error(operation: str, where: str, response: Mapping[str, Any], role: str | None = None) -> ConnectorError:
    """Build the error for a response of the service, as botocore parses it.

    ``where`` names the stream or shard, and ``role`` is that of the options. The operation may be ``AssumeRole``, which
    is made for another one.
    """
    error, name = response.get("Error", {}), _name(response)
    message = _cleaned(error.get("Message") or error.get("message") or "")
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    what = f"{operation} was answered {name or status}{message}"
    of_role = operation.startswith("AssumeRole")
    where = role or where if of_role else where
    if (kind := _KINDS.get(name)) is None:
        if status < _SERVER_ERROR and status != _TOO_MANY_REQUESTS:
            return ConnectorError("KINESIS_CALL_FAILED", what, where)
        kind = _THROTTLED if status == _TOO_MANY_REQUESTS else _UNAVAILABLE
    if of_role:
        kind = _OF_ROLE.get(kind, kind)
    return kind.error(kind.code, what, where, kind.action.format(operation=operation))


def refuses_keys(response: Mapping[str, Any]) -> bool:
    """Return whether keys have expired or are unknown by now, so that there may be new ones."""
    return _name(response) in _STALE_KEYS


def _name(response: Mapping[str, Any]) -> str:
    return str(response.get("Error", {}).get("Code", "")).rpartition("#")[2]


def client_error(operation: str, where: str, error: BaseException) -> ConnectorError:
    """Build the error for one that botocore raises without a response of the service."""
    name, kinds = type(error).__name__, {kind.__name__ for kind in type(error).__mro__}
    what = f"{operation} failed: {name}{_cleaned(str(error))}"
    if name == "SSLError" and _CERTIFICATE.search(str(error)):
        return certificate_error(what, where)
    if kinds & _NETWORK:
        return ServiceUnavailableError("KINESIS_UNAVAILABLE", what, where, "Check the network, endpointUrl and region.")
    if name == "NoRegionError":
        action = "Give the option region, or set AWS_REGION."
        return OptionError("KINESIS_NO_REGION", "No region is known", "region", action)
    if name == "InvalidRegionError":
        return OptionError("OPTION_ILLEGAL", what, "region", "Give the option region, such as eu-west-1.")
    if name == "ParamValidationError":
        return ConnectorError(INVALID_ARGUMENT, what, where, "Check the options.")
    action = "Check the option profile, the shared AWS files and the variables of the environment that begin with AWS_."
    if kinds & _NO_CREDENTIALS:
        action = "Give keys, a profile or a role, or set up the default chain."
    elif kinds & _LOGIN:
        action = "Log in again (aws sso login), or give credentials that a query can renew by itself, such as a role."
    return CredentialsError(CREDENTIALS, what, where, action)


def certificate_error(what: str, where: str) -> CredentialsError:
    """Build the error for a certificate that is not trusted: no retry helps."""
    action = (
        "Name a file with the authority that signed the certificate by AWS_CA_BUNDLE or by ca_bundle in the shared AWS "
        "files, on the driver and each executor; a proxy that opens TLS has an authority of its own. If the name or "
        "the date of the certificate is wrong, check endpointUrl, stsEndpoint and the clock."
    )
    return CredentialsError("TLS_CERTIFICATE", what, where, action)


def credentials_error(error: BaseException) -> CredentialsError:
    """Build the error for one that is not botocore's own: a missing file, a program that returns nonsense."""
    what = f"Finding credentials failed: {type(error).__name__}{_cleaned(str(error))}"
    action = "Check where they come from: the shared AWS files, credential_process, the token's file, the container."
    return CredentialsError(CREDENTIALS, what, "", action)


def _cleaned(text: str) -> str:
    """Return a message without what may be a secret, as the end of a sentence."""
    cleaned = _SECRETS.sub("***", " ".join(text.split()))[:_SHOWN_CHARACTERS].rstrip(". ")
    return f": {cleaned}" if cleaned else ""
