"""The options that source and sink share: where the service is, and by which credentials it is reached."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from connectors.core.aws.access import AwsAccessOptions, check_access, region_from
from connectors.core.errors import OptionError
from connectors.core.options.declaration import option, refined
from connectors.core.options.kinds import DURATION, INTEGER, Secret
from connectors.core.options.outages import OutageOptions
from connectors.core.retry import OutageRule
from connectors.kinesis import FORMAT

T = TypeVar("T", bound="KinesisClientOptions")

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""The name of a stream or a consumer."""
STREAM_ARN: Final = re.compile(r"arn:aws[a-z-]*:kinesis:([a-z0-9-]+):[0-9]{12}:stream/([A-Za-z0-9_.-]{1,128})")
"""Its groups are the region and the name."""
STREAM: Final = re.compile(f"{NAME.pattern}|{STREAM_ARN.pattern}")
_SECRETS: Final = ("access_key", "secret_key", "session_token", "role_external_id")


def stream_named(stream: str) -> dict[str, str]:
    """Return the parameter of a call that names a stream, by its name or ARN."""
    return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisClientOptions(OutageOptions, AwsAccessOptions):
    """How to reach the service, for source and sink; pickles with its secrets, and shows none."""

    region: str | None = refined(
        AwsAccessOptions, "region", "That of streamARN comes first.", aliases=("kinesis.region",)
    )
    endpoint_url: str | None = refined(AwsAccessOptions, "endpoint_url", aliases=("kinesis.endpointUrl",))
    sts_endpoint: str | None = refined(AwsAccessOptions, "sts_endpoint", aliases=("kinesis.stsEndpointUrl",))
    access_key: Secret | None = refined(AwsAccessOptions, "access_key", aliases=("kinesis.awsAccessKeyId",))
    secret_key: Secret | None = refined(AwsAccessOptions, "secret_key", aliases=("kinesis.awsSecretKey",))
    role_arn: str | None = refined(AwsAccessOptions, "role_arn", aliases=("kinesis.stsRoleArn",))
    role_session_name: str | None = refined(AwsAccessOptions, "role_session_name", aliases=("kinesis.stsSessionName",))
    max_retry_interval: float = option(
        "maxRetryInterval",
        DURATION,
        "The longest wait before a call is tried again; waits grow from 100ms and are random.",
        default="10s",
        minimum="100ms",
    )
    num_retries: int | None = option(
        "numRetries",
        INTEGER,
        "How often in a row a call is tried again that was throttled, or not answered, before the query fails, as "
        "awslabs' connector counts. It replaces retryTimeout, however long that takes. Default: retryTimeout.",
        default=None,
        minimum="0",
        maximum="1000",
        aliases=("client.numRetries", "kinesis.client.numRetries"),
    )

    @property
    def outage_rule(self) -> OutageRule:
        """When the service is given up: by ``numRetries`` where it is given, else by ``retryTimeout``."""
        rule = replace(super(KinesisClientOptions, self).outage_rule, cap_seconds=self.max_retry_interval)
        return rule if self.num_retries is None else replace(rule, attempts=self.num_retries, option="numRetries")

    def stream_datasets(self, streams: Iterable[str]) -> list[tuple[str, str]]:
        """Return streams, by name or ARN, as OpenLineage's Spark integration names those of awslabs' connector.

        None without a region, as where only a profile knows it.
        """
        if self.endpoint_url is None and self.region is None:
            return []
        suffix = ".cn" if (self.region or "").startswith("cn-") else ""
        url = urlsplit(self.endpoint_url or f"https://kinesis.{self.region}.amazonaws.com{suffix}")
        host = re.sub(":(80|443)?$", "", url.netloc.lower())
        return [(f"kinesis://{host}", stream.rpartition("/")[2]) for stream in streams]


def resolve_client(options: T, environ: Mapping[str, str], stream: str) -> T:
    """Return the options with their region, after the checks that need more than one option.

    Raises an `OptionError` for incomplete or contradicting credentials, regions that differ, or a plain http URL.
    """
    check_access(options, FORMAT)
    arn = STREAM_ARN.fullmatch(stream)
    if arn and options.region is not None and options.region != arn[1]:
        what = f"The option region is {options.region}, but the stream is in {arn[1]}"
        raise OptionError("OPTION_CONFLICT", what, FORMAT)
    return dataclasses.replace(options, region=region_from(options, environ, "kinesis", arn[1] if arn else None))


def client_options(options: KinesisClientOptions) -> KinesisClientOptions:
    """Return only what is needed to reach the service, for tasks."""
    return KinesisClientOptions(**_client_values(options))


def client_to_json(options: KinesisClientOptions) -> dict[str, Any]:
    """Return what is needed to reach the service with the secrets in it, for a pipe; never show it."""
    values = _client_values(options).items()
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in values}


def client_from_json(value: Mapping[str, Any]) -> KinesisClientOptions:
    secrets = {name: Secret(value[name]) for name in _SECRETS if value[name] is not None}
    return KinesisClientOptions(**{**value, **secrets})


def _client_values(options: KinesisClientOptions) -> dict[str, Any]:
    return {declared.name: getattr(options, declared.name) for declared in dataclasses.fields(KinesisClientOptions)}
