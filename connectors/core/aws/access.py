"""How a service of AWS is reached: the options, declared once, and the checks that need more than one of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from connectors.core.errors import OptionError
from connectors.core.options import transport
from connectors.core.options.declaration import conflict, option
from connectors.core.options.kinds import BOOLEAN, SECRET, STRING, Kind, Secret
from connectors.core.options.providers import credential_provider

_ROLE_ARN: Final = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/.+")
_HOST: Final = r"(?:[a-z0-9-]+\.)*{}(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?(?:amazonaws\.com|api\.aws)(?:\.cn)?"
_DOMAINS: Final = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu", ".api.aws", ".amazonwebservices.com.cn")
_LOCAL_REGION: Final = "us-east-1"


def is_of_aws(url: str) -> bool:
    """Return whether a URL is one of AWS itself, and not of an emulator or another service with its protocol."""
    return (urlsplit(url).hostname or "").rstrip(".").endswith(_DOMAINS)


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


@dataclass(frozen=True, kw_only=True)
class AwsAccessOptions:
    """How a service of AWS is reached, and by which credentials; without slots, so that it can be a second base."""

    region: str | None = option(
        "region",
        STRING,
        "The region. When absent: that of endpointUrl, of AWS_REGION or AWS_DEFAULT_REGION, or of the profile; for an "
        "endpoint outside AWS, us-east-1.",
        default=None,
        aliases=("regionName", "awsRegion"),
    )
    endpoint_url: str | None = option(
        "endpointUrl",
        URL,
        "Where the service is, when not at the region's own address: a VPC endpoint, or a server for tests.",
        default=None,
        aliases=("endpoint",),
    )
    sts_endpoint: str | None = option(
        "stsEndpoint",
        URL,
        "Where roles are assumed, when not at the region's own address.",
        default=None,
        aliases=("stsEndpointUrl",),
    )
    allow_insecure: bool = option(
        "allowInsecure",
        BOOLEAN,
        "Allow an http: URL of another machine for the service or STS. Others can then read keys of roles, session "
        "tokens and data, and change them. Also for URLs of AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_STS, the variable of "
        "the service, and the shared AWS files.",
        default="false",
    )
    access_key: Secret | None = option(
        "awsAccessKey",
        SECRET,
        "An access key. Without keys, profile and role the default chain of AWS is used: environment, files, web "
        "identity, container, instance; on the driver and on each executor, by what is there.",
        default=None,
        aliases=("awsAccessKeyId",),
    )
    secret_key: Secret | None = option(
        "awsSecretKey", SECRET, "The secret of awsAccessKey.", default=None, aliases=("awsSecretAccessKey",)
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
    credential_provider: str | None = credential_provider(
        "credentialProvider",
        "botocore's metadata of refreshable credentials (a dict of access_key, secret_key, token and expiry_time), "
        "credentials or a session of boto3, or obstore's dict for S3",
        instead_of=("serviceCredential", "credentialProviderClass", "kinesis.credentialProviderClass"),
    )
    role_arn: str | None = option(
        "roleArn",
        ROLE,
        "A role to assume by the other credentials; its own are refreshed before they expire.",
        default=None,
        aliases=("stsRoleArn", "awsSTSRoleARN"),
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
        aliases=("stsSessionName", "awsSTSSessionName"),
    )


def check_access(options: AwsAccessOptions, where: str) -> None:
    """Raise an `OptionError` when credentials are incomplete or contradict each other, or a URL asks for plain http.

    ``where`` names in errors what the options are of.
    """
    for name, url in (("endpointUrl", options.endpoint_url), ("stsEndpoint", options.sts_endpoint)):
        refuse_plaintext(url or "", f"The option {name}", where, allowed=options.allow_insecure)
    if (options.access_key is None) != (options.secret_key is None):
        missing = "awsAccessKey" if options.access_key is None else "awsSecretKey"
        raise OptionError("OPTION_MISSING", f"The option {missing} is missing", where, "Give both keys or neither.")
    if options.session_token is not None and options.access_key is None:
        what = "The option awsSessionToken needs awsAccessKey and awsSecretKey"
        raise OptionError("OPTION_MISSING", what, where, "Give all three.")
    values = (options.access_key, options.secret_key, options.session_token)
    for name, key in zip(("awsAccessKey", "awsSecretKey", "awsSessionToken"), values, strict=True):
        # A key of a file whose last line ends has a line break; keys are not shown.
        text = "" if key is None else key.reveal()
        if not (text.isascii() and text.isprintable() and " " not in text):
            what = f"The option {name} has a character that no key has: white space, or one outside ASCII"
            raise OptionError("OPTION_ILLEGAL", what, where, "Remove the character.")
    sources = {
        "credentialProvider": options.credential_provider,
        "profile": options.profile,
        "awsAccessKey": options.access_key,
    }
    chosen = [name for name, value in sources.items() if value is not None]
    if chosen[1:]:
        raise conflict(where, chosen[0], chosen[1], "both give credentials", "Give one of them.")
    for name, value in (("roleExternalId", options.role_external_id), ("roleSessionName", options.role_session_name)):
        if value is not None and options.role_arn is None:
            raise OptionError("OPTION_MISSING", f"The option {name} needs roleArn", where, "Give the role.")


def refuse_plaintext(url: str, source: str, where: str, *, allowed: bool) -> None:
    """Raise an `OptionError` for plain http to another machine; ``source``, which asks for it, begins the sentence."""
    action = (
        "Use https:// in endpointUrl, stsEndpoint, the AWS_ENDPOINT_URL variables and the shared AWS files. Or allow "
        "plain http with the option allowInsecure=true."
    )
    transport.refuse_plaintext(url, source, where, action, allowed=allowed)


def region_from(
    options: AwsAccessOptions, environ: Mapping[str, str], service: str, own_region: str | None = None
) -> str | None:
    """Return the region: the option's, ``own_region``, that of the endpoint or the environment, or of no AWS.

    None leaves it to the profile; ``service`` is the first part of the hosts of a service.
    """
    if options.region is not None:
        return options.region
    host = re.fullmatch(_HOST.format(service), urlsplit(options.endpoint_url or "").hostname or "")
    region = own_region or (host[1] if host else None) or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region is None and options.profile is None and options.endpoint_url is not None and host is None:
        return _LOCAL_REGION
    return region
