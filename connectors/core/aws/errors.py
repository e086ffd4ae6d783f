"""What errors of AWS and of botocore have in common; by their names, so that no SDK is imported here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

from connectors.core.errors import CredentialsError

# Names of errors that any service may answer.
THROTTLED: Final = (
    "ThrottlingException Throttling RequestLimitExceeded TooManyRequestsException KMSThrottlingException SlowDown "
    "ThrottledException RequestThrottledException RequestThrottled BandwidthLimitExceeded EC2ThrottledException "
    "PriorRequestNotComplete TransactionInProgressException"
)
UNAVAILABLE: Final = (
    "InternalFailure InternalFailureException InternalServerError ServiceUnavailable ServiceUnavailableException "
    "RequestTimeout RequestTimeoutException RequestExpired RequestAbortedException IDPCommunicationError"
)
ACCESS_DENIED: Final = "AccessDenied AccessDeniedException KMSAccessDeniedException"
KEYS_REFUSED: Final = (
    "UnrecognizedClientException InvalidClientTokenId InvalidSignatureException SignatureDoesNotMatch "
    "IncompleteSignature IncompleteSignatureException MissingAuthenticationToken MissingAuthenticationTokenException "
    "ExpiredToken ExpiredTokenException OptInRequired NotAuthorized InvalidIdentityToken IDPRejectedClaim "
    "RegionDisabledException MalformedPolicyDocument PackedPolicyTooLarge UnauthorizedException"
)
TOO_MANY_REQUESTS: Final = 429
SERVER_ERROR: Final = 500

_SHOWN_CHARACTERS: Final = 300
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


class ClientFailure(Enum):
    """What an error means that botocore raises without a response of the service."""

    CERTIFICATE = auto()
    NETWORK = auto()
    NO_REGION = auto()
    ILLEGAL_REGION = auto()
    ILLEGAL_PARAMETERS = auto()
    CREDENTIALS = auto()


def client_failure(error: BaseException) -> ClientFailure:
    """Return what an error of botocore means."""
    name = type(error).__name__
    if name == "SSLError" and _CERTIFICATE.search(str(error)):
        return ClientFailure.CERTIFICATE
    if _kinds(error) & _NETWORK:
        return ClientFailure.NETWORK
    named = {
        "NoRegionError": ClientFailure.NO_REGION,
        "InvalidRegionError": ClientFailure.ILLEGAL_REGION,
        "ParamValidationError": ClientFailure.ILLEGAL_PARAMETERS,
    }
    return named.get(name, ClientFailure.CREDENTIALS)


def credentials_action(error: BaseException) -> str:
    """Return what to do about an error that is about credentials."""
    if _kinds(error) & _NO_CREDENTIALS:
        return "Give keys, a profile or a role, or set up the default chain."
    if _kinds(error) & _LOGIN:
        return "Run aws sso login again, or give credentials that a query can renew by itself, such as a role."
    return "Check the option profile, the shared AWS files and the environment variables that begin with AWS_."


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def certificate_error(what: str, where: str) -> CredentialsError:
    """Build the error for a certificate that is not trusted: no retry helps."""
    action = (
        "Set AWS_CA_BUNDLE, or ca_bundle in the shared AWS files, to a file with the authority that signed the "
        "certificate, on the driver and each executor. A proxy that opens TLS has its own authority. If the name or "
        "the date of the certificate is wrong, check endpointUrl, stsEndpoint and the clock."
    )
    return CredentialsError("TLS_CERTIFICATE", what, where, action)


def refuses_keys(response: Mapping[str, Any]) -> bool:
    """Return whether keys have expired or are unknown by now, so that there may be new ones."""
    return error_name(response) in _STALE_KEYS


def error_name(response: Mapping[str, Any]) -> str:
    """Return the name of the error in a response of a service, as botocore parses it."""
    return str(response.get("Error", {}).get("Code", "")).rpartition("#")[2]


def cleaned(text: str) -> str:
    """Return a message without what may be a secret, as the end of a sentence."""
    shown = _SECRETS.sub("***", " ".join(text.split()))[:_SHOWN_CHARACTERS].rstrip(". ")
    return f": {shown}" if shown else ""
