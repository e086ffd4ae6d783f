"""The calls of the Glue Schema Registry by botocore. Every error is a `ConnectorError`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from connectors.core.aws import errors as aws
from connectors.core.aws.client.connection import AwsConnection, AwsService
from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    OptionError,
    ServiceUnavailableError,
    SourceGoneError,
)
from connectors.registry.batches import schema_unusable
from connectors.registry.glue.options import GlueOptions

NOT_FOUND: Final = "EntityNotFoundException"
EXISTS: Final = "AlreadyExistsException"

_REGISTRY: Final = "schemaRegistry"
_CONNECTIONS: Final = 4
_UNAVAILABLE: Final = {
    *aws.THROTTLED.split(),
    *aws.UNAVAILABLE.split(),
    "InternalServiceException",
    "OperationTimeoutException",
    "ConcurrentModificationException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
}
_TRANSIENT: Final = {408, 425, aws.TOO_MANY_REQUESTS}  # besides 5xx; the first two are a proxy's
_REFUSED: Final = {"InvalidInputException", "ResourceNumberLimitExceededException"}
_WRITES: Final = {"RegisterSchemaVersion", "CreateSchema"}


class GlueClient:
    """Makes calls; safe to use from several threads. The first call connects."""

    def __init__(self, options: GlueOptions) -> None:
        self._options = options
        service = AwsService(
            "glue", _REGISTRY, _credentials_error, connect_seconds=options.timeout, read_seconds=options.timeout
        )
        self._connection = AwsConnection(options, service, _CONNECTIONS)

    def call(
        self, operation: str, what: str, ignored: Collection[str] = (), **parameters: Any
    ) -> dict[str, Any] | None:
        """Make one call; None for an error of the service whose name is in `ignored`.

        Raises:
            ServiceUnavailableError: no response, or a transient one.
            ConnectorError: any other response; SourceGoneError for what is not there.
        """
        name = "".join(part.capitalize() for part in operation.split("_"))
        try:
            return self._connection.call(operation, parameters)
        except ClientError as error:
            if aws.error_name(error.response) in ignored:
                return None
            raise _service_error(error.operation_name, what, error.response, self._options.role_arn) from None
        except (BotoCoreError, ResponseParserError) as error:
            raise _client_error(name, what, error) from None


def _service_error(operation: str, what: str, response: Mapping[str, Any], role: str | None) -> ConnectorError:
    """Build the error for a response; the operation may be ``AssumeRole``, which is made for another one."""
    error, name = response.get("Error", {}), aws.error_name(response)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    why = f"{operation} failed with {name or status}{aws.cleaned(error.get('Message') or error.get('message') or '')}"
    if name in _UNAVAILABLE or status >= aws.SERVER_ERROR or status in _TRANSIENT:
        return _unavailable(what, why, "retry.timeout says how long it is asked again.")
    if name in aws.ACCESS_DENIED.split():
        of_role = operation.startswith("AssumeRole")
        action = f"Allow glue:{operation} on the registry and its schemas."
        return AccessDeniedError(
            "SCHEMA_REGISTRY_ACCESS_DENIED",
            f"The schema registry refuses access to {what}: {why}",
            role or _REGISTRY if of_role else _REGISTRY,
            f"Allow sts:{operation} on the role, and let the role trust these credentials." if of_role else action,
        )
    if name in aws.KEYS_REFUSED.split():
        return _refused_credentials(why, "Check the keys, the profile or the role.")
    if name == NOT_FOUND:
        return SourceGoneError("SCHEMA_NOT_FOUND", f"The schema registry has no {what}", _REGISTRY)
    if operation in _WRITES and name in _REFUSED:
        return ConnectorError("SCHEMA_REFUSED", f"The schema registry refuses the {what}: {why}", _REGISTRY)
    return schema_unusable(what, why)


def _client_error(operation: str, what: str, error: BaseException) -> ConnectorError:
    """Build the error for an exception that botocore raises without a response of the service."""
    why, failure = f"{operation} failed: {type(error).__name__}{aws.cleaned(str(error))}", aws.client_failure(error)
    if failure is aws.ClientFailure.CERTIFICATE:
        return aws.certificate_error(why, _REGISTRY)
    if failure is aws.ClientFailure.NETWORK:
        return _unavailable(what, why, "Check the network, endpointUrl and region.")
    if failure is aws.ClientFailure.NO_REGION:
        return OptionError(
            "OPTION_MISSING", "The AWS region is not set", _REGISTRY, "Give the option region, or set AWS_REGION."
        )
    if failure is aws.ClientFailure.ILLEGAL_REGION:
        return OptionError("OPTION_ILLEGAL", why, _REGISTRY, "Give the option region, such as eu-west-1.")
    if failure is aws.ClientFailure.ILLEGAL_PARAMETERS:
        return OptionError("OPTION_ILLEGAL", why, _REGISTRY, "Check schemaName and registryName.")
    return _refused_credentials(why, aws.credentials_action(error))


def _unavailable(what: str, why: str, action: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "SCHEMA_REGISTRY_UNAVAILABLE", f"The schema registry does not return {what}: {why}", _REGISTRY, action
    )


def _credentials_error(error: BaseException) -> CredentialsError:
    why = f"Finding credentials failed: {type(error).__name__}{aws.cleaned(str(error))}"
    action = "Check where they come from: the shared AWS files, credential_process, the token's file, the container."
    return _refused_credentials(why, action)


def _refused_credentials(why: str, action: str) -> CredentialsError:
    return CredentialsError("SCHEMA_REGISTRY_CREDENTIALS", why, _REGISTRY, action)
