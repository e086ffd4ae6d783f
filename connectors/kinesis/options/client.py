"""The options that source and sink share: where the service is, and by which credentials it is reached."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from connectors.core.aws.access import ROLE, URL, check_access, region_from
from connectors.core.errors import OptionError
from connectors.core.options.declaration import option
from connectors.core.options.kinds import BOOLEAN, DURATION, INTEGER, SECRET, STRING, Secret
from connectors.core.options.outages import OutageOptions
from connectors.core.retry import OutageRule
from connectors.kinesis import FORMAT

T = TypeVar("T", bound="KinesisClientOptions")

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""The name of a stream or a consumer."""
STREAM_ARN: Final = re.compile(r"arn:aws[a-z-]*:kinesis:([a-z0-9-]+):[0-9]{12}:stream/([A-Za-z0-9_.-]{1,128})")
"""Its groups are the region and the name."""
_SECRETS: Final = ("access_key", "secret_key", "session_token", "role_external_id")


def stream_named(stream: str) -> dict[str, str]:
    """Return the parameter of a call that names a stream, by its name or ARN."""
    return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisClientOptions(OutageOptions):
    """How to reach the service, for source and sink; pickles with its secrets, and shows none."""

    region: str | None = option(
        "region",
        STRING,
        "The region of the streams. When absent: that of streamARN, of endpointUrl, of AWS_REGION or "
        "AWS_DEFAULT_REGION, or of the profile; for an endpoint that is none of AWS, us-east-1.",
        default=None,
        aliases=("regionName", "awsRegion", "kinesis.region"),
    )
    endpoint_url: str | None = option(
        "endpointUrl",
        URL,
        "Where the service is, when not at the region's own address: a VPC endpoint, or a server for tests.",
        default=None,
        aliases=("endpoint", "kinesis.endpointUrl"),
    )
    sts_endpoint: str | None = option(
        "stsEndpoint",
        URL,
        "Where roles are assumed, when not at the region's own address.",
        default=None,
        aliases=("stsEndpointUrl", "kinesis.stsEndpointUrl"),
    )
    allow_insecure: bool = option(
        "allowInsecure",
        BOOLEAN,
        "Reach the service or STS without TLS where an http: URL is none of this machine: others can then read keys of "
        "roles, session tokens and data. Also for URLs of AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_KINESIS, "
        "AWS_ENDPOINT_URL_STS and the shared AWS files.",
        default="false",
    )
    access_key: Secret | None = option(
        "awsAccessKey",
        SECRET,
        "An access key. Without keys, profile and role the default chain of AWS is used: environment, files, web "
        "identity, container, instance; on the driver and on each executor, by what is there.",
        default=None,
        aliases=("awsAccessKeyId", "kinesis.awsAccessKeyId"),
    )
    secret_key: Secret | None = option(
        "awsSecretKey",
        SECRET,
        "The secret of awsAccessKey.",
        default=None,
        aliases=("awsSecretAccessKey", "kinesis.awsSecretKey"),
    )
    session_token: Secret | None = option(
        "awsSessionToken", SECRET, "The token of temporary keys. They are not refreshed: see roleArn.", default=None
    )
    profile: str | None = option(
        "profile",
        STRING,
        "A profile of the shared AWS files, which must be there on the driver and on each executor.",
        default=None,
        aliases=("awsProfile",),
    )
    role_arn: str | None = option(
        "roleArn",
        ROLE,
        "A role to assume by the other credentials; its own are refreshed before they expire.",
        default=None,
        aliases=("stsRoleArn", "awsSTSRoleARN", "kinesis.stsRoleArn"),
    )
    role_external_id: Secret | None = option(
        "roleExternalId",
        SECRET,
        "The external id that the role asks for.",
        default=None,
        aliases=("stsExternalId", "externalId"),
    )
    role_session_name: str | None = option(
        "roleSessionName",
        STRING,
        "The session's name, as the logs of AWS show it.",
        default=None,
        aliases=("stsSessionName", "awsSTSSessionName", "kinesis.stsSessionName"),
    )
    num_retries: int | None = option(
        "numRetries",
        INTEGER,
        "How often in a row a call is tried again that was throttled, or not answered, before the query fails. Given, "
        "it replaces retryTimeout, however long that takes. Default: retryTimeout.",
        default=None,
        minimum="0",
        maximum="1000",
        aliases=("client.numRetries", "kinesis.client.numRetries"),
    )
    max_retry_interval: float = option(
        "maxRetryInterval",
        DURATION,
        "The longest wait between two of these; waits grow from 100ms and are random.",
        default="10s",
        minimum="100ms",
    )

    @property
    def outage_rule(self) -> OutageRule:
        """When the service is given up: by ``numRetries`` where it is given, else by ``retryTimeout``."""
        rule = replace(super(KinesisClientOptions, self).outage_rule, cap_seconds=self.max_retry_interval)
        return rule if self.num_retries is None else replace(rule, attempts=self.num_retries, option="numRetries")


def resolve_client(options: T, environ: Mapping[str, str], stream: str) -> T:
    """Return the options with their region, after checks that need more than one of them; for source and sink.

    Raises an `OptionError` when credentials are incomplete or contradict each other, the regions differ, or a URL asks
    for plain http.
    """
    check_access(options, FORMAT)
    arn = STREAM_ARN.fullmatch(stream)
    if arn and options.region is not None and options.region != arn[1]:
        what = f"The option region is {options.region} and the stream is in {arn[1]}"
        raise OptionError("OPTION_CONFLICT", what, FORMAT, "Leave region out.")
    return dataclasses.replace(options, region=region_from(options, environ, "kinesis", arn[1] if arn else None))


def client_options(options: KinesisClientOptions) -> KinesisClientOptions:
    """Return only what is needed to reach the service, for tasks."""
    return KinesisClientOptions(**_client_values(options))


def client_to_json(options: KinesisClientOptions) -> dict[str, Any]:
    """Return what is needed to reach the service with the secrets in it, for a pipe; never show it."""
    values = _client_values(options).items()
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in values}


def client_from_json(value: Mapping[str, Any]) -> KinesisClientOptions:
    """Read what `client_to_json` wrote."""
    secrets = {name: Secret(value[name]) for name in _SECRETS if value[name] is not None}
    return KinesisClientOptions(**{**value, **secrets})


def _client_values(options: KinesisClientOptions) -> dict[str, Any]:
    return {declared.name: getattr(options, declared.name) for declared in dataclasses.fields(KinesisClientOptions)}
