"""The options that source and sink share: where the service is, and by which credentials it is reached."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from connectors.core.errors import OptionError
from connectors.core.options import transport
from connectors.core.options.declaration import conflict, option
from connectors.core.options.kinds import BOOLEAN, DURATION, INTEGER, SECRET, STRING, Kind, Secret
from connectors.core.options.outages import OutageOptions
from connectors.core.retry import OutageRule
from connectors.kinesis import FORMAT

__all__ = [
    "NAME",
    "STREAM_ARN",
    "KinesisClientOptions",
    "client_from_json",
    "client_options",
    "client_to_json",
    "refuse_plaintext",
    "resolve_client",
    "stream_named",
]

T = TypeVar("T", bound="KinesisClientOptions")

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""The name of a stream or a consumer."""
STREAM_ARN: Final = re.compile(r"arn:aws[a-z-]*:kinesis:([a-z0-9-]+):[0-9]{12}:stream/([A-Za-z0-9_.-]{1,128})")
"""Its groups are the region and the name."""
_ROLE_ARN: Final = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/.+")
_HOST: Final = re.compile(
    r"(?:[a-z0-9-]+\.)*kinesis(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?(?:amazonaws\.com|api\.aws)(?:\.cn)?"
)
_LOCAL_REGION: Final = "us-east-1"
_SECRETS: Final = ("access_key", "secret_key", "session_token", "role_external_id")


def stream_named(stream: str) -> dict[str, str]:
    """Return the parameter of a call that names a stream, by its name or ARN."""
    return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}


def _parse_url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ValueError("it is not a URL that begins with https:// or http://")
    if url.username or url.password:
        raise ValueError("it holds a user's name")
    if any(character.isspace() for character in text):
        raise ValueError("it holds white space")
    try:
        _ = url.port
    except ValueError:
        raise ValueError("its port is not legal") from None
    return text.rstrip("/")


def _parse_role(text: str) -> str:
    if not _ROLE_ARN.fullmatch(text):
        raise ValueError("it is not the ARN of a role")
    return text


URL: Final = Kind("string", "a URL such as https://kinesis.eu-west-1.amazonaws.com", _parse_url)
ROLE: Final = Kind("string", "an ARN such as arn:aws:iam::123456789012:role/reader", _parse_role)


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
    for name, url in (("endpointUrl", options.endpoint_url), ("stsEndpoint", options.sts_endpoint)):
        refuse_plaintext(url or "", f"The option {name}", allowed=options.allow_insecure)
    if (options.access_key is None) != (options.secret_key is None):
        missing = "awsAccessKey" if options.access_key is None else "awsSecretKey"
        raise OptionError("OPTION_MISSING", f"The option {missing} is missing", FORMAT, "Give both keys or none.")
    if options.session_token is not None and options.access_key is None:
        what = "awsSessionToken needs awsAccessKey and awsSecretKey"
        raise OptionError("OPTION_MISSING", what, FORMAT, "Give all three.")
    values = (options.access_key, options.secret_key, options.session_token)
    for name, key in zip(("awsAccessKey", "awsSecretKey", "awsSessionToken"), values, strict=True):
        # A key of a file whose last line ends has a line break; keys are not shown.
        text = "" if key is None else key.reveal()
        if not (text.isascii() and text.isprintable() and " " not in text):
            what = f"The option {name} has a character that no key has: white space, or none of ASCII"
            raise OptionError("OPTION_ILLEGAL", what, FORMAT, "Give the key without it.")
    if options.profile is not None and options.access_key is not None:
        raise conflict(FORMAT, "profile", "awsAccessKey", "both give credentials", "Give one of them.")
    for name, value in (("roleExternalId", options.role_external_id), ("roleSessionName", options.role_session_name)):
        if value is not None and options.role_arn is None:
            raise OptionError("OPTION_MISSING", f"The option {name} needs roleArn", FORMAT, "Give the role.")
    arn = STREAM_ARN.fullmatch(stream)
    if arn and options.region is not None and options.region != arn[1]:
        what = f"The option region is {options.region} and the stream is in {arn[1]}"
        raise OptionError("OPTION_CONFLICT", what, FORMAT, "Leave region out.")
    return dataclasses.replace(options, region=options.region or _region(options, environ, arn[1] if arn else None))


def refuse_plaintext(url: str, source: str, *, allowed: bool) -> None:
    """Raise an `OptionError` for plain http to another machine; ``source``, which asks for it, begins the sentence."""
    action = (
        "Use https:// in endpointUrl, stsEndpoint, the AWS_ENDPOINT_URL variables and the shared AWS files, or "
        "allow it with the option allowInsecure=true."
    )
    transport.refuse_plaintext(url, source, FORMAT, action, allowed=allowed)


def _region(options: KinesisClientOptions, environ: Mapping[str, str], of_arn: str | None) -> str | None:
    host = _HOST.fullmatch(urlsplit(options.endpoint_url or "").hostname or "")
    region = of_arn or (host[1] if host else None) or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region is None and options.profile is None and options.endpoint_url is not None and host is None:
        return _LOCAL_REGION
    return region


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
