"""Sessions of botocore, which finds credentials, signs and sends.

It neither parses the responses of GetRecords nor writes the requests of PutRecords, which takes it ten times as long as
msgspec: hooks on its events pass those bodies by. It does not retry: its retries would not count against the calls that
a shard allows, and could not be left when the query ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, NoCredentialsError
from botocore.httpsession import where as default_authorities
from botocore.parsers import ResponseParserError
from botocore.session import Session

from connectors.core.errors import ConnectorError
from connectors.kinesis.client.errors import client_error, credentials_error, service_error
from connectors.kinesis.options.client import KinesisClientOptions, refuse_plaintext

__all__ = ["BODY", "SignedRequest", "named_errors", "open_client", "open_session", "sign"]

BODY: Final = "RawBody"
"""The key of a body that botocore neither parses nor writes, in responses and in parameters."""

T = TypeVar("T")

_TIME: Final = "iterator_time"
_OK: Final = 200
_VALID_RECORDS: Final = [{"Data": b"", "PartitionKey": "0"}]
_CONNECT_SECONDS: Final = 10
_READ_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A signed HTTP request; its signature is valid for some minutes.

    ``certificates`` is a file with the authorities that botocore trusts; None for ``http:``. ``keys`` is how often the
    keys had been read again.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes
    certificates: str | None
    keys: int = 0


@contextmanager
def named_errors(operation: str, where: str, options: KinesisClientOptions) -> Iterator[None]:
    """Raise botocore's errors as our own; ``operation`` and ``where`` (its stream or shard) are named in them."""
    try:
        yield
    except ClientError as error:
        raise service_error(error.operation_name, where, error.response, options.role_arn) from None
    except (BotoCoreError, ResponseParserError) as error:
        raise client_error(operation, where, error) from None


def open_session(options: KinesisClientOptions) -> Session:
    """Open a session with the credentials of the options."""
    session = Session(profile=options.profile)
    # Clients for credentials are made from it too, and any of them may have its URL from the environment or a file.
    session.register("request-created", partial(_check_plaintext, allowed=options.allow_insecure))
    if options.region is not None:
        session.set_config_variable("region", options.region)
    if options.access_key is not None and options.secret_key is not None:
        token = options.session_token
        session.set_credentials(
            options.access_key.reveal(), options.secret_key.reveal(), token.reveal() if token is not None else None
        )
    credentials = _find(session.get_credentials)
    if options.role_arn is not None:
        credentials = _role_credentials(session, options, options.role_arn, credentials)
    if credentials is not None:
        session._credentials = _Credentials(credentials)  # noqa: SLF001 - as its providers do; it has no setter
    return session


def _role_credentials(session: Session, options: KinesisClientOptions, role: str, source: Any) -> Any:
    """Return credentials of a role, which are refreshed before they expire."""
    if source is None:
        raise NoCredentialsError
    external, name = options.role_external_id, options.role_session_name
    extra = {"ExternalId": external.reveal() if external is not None else None, "RoleSessionName": name}
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=partial(session.create_client, endpoint_url=options.sts_endpoint),
        source_credentials=source,
        role_arn=role,
        extra_args={key: value for key, value in extra.items() if value is not None},
    )
    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


class _Credentials:
    """Credentials of botocore whose errors have a name.

    botocore finds and refreshes credentials while it signs, and raises what goes wrong there as it is: a token's file
    that is missing, a program or a token service that returns nonsense.
    """

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def get_frozen_credentials(self) -> Any:
        return _find(self._credentials.get_frozen_credentials)

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return a function that finds a property: endpoints may hold the account, which refreshes keys too."""
        return partial(_find, self._credentials.get_deferred_property(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._credentials, name)


def _find(find: Callable[[], T]) -> T:
    """Call a function of botocore that finds credentials.

    Raises:
        CredentialsError: it raised an error that is not botocore's own; those pass.
    """
    try:
        return find()
    except Exception as error:
        if isinstance(error, ConnectorError) or type(error).__module__.startswith("botocore."):
            raise
        raise credentials_error(error) from None


def open_client(session: Session, options: KinesisClientOptions, connections: int) -> Any:
    """Open a client of Kinesis with our hooks, for so many calls at a time."""
    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=connections,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
        user_agent_extra="pyspark-stream-connectors",
    )
    client = session.create_client("kinesis", endpoint_url=options.endpoint_url, config=config)
    for event, hook in (
        ("before-parse.kinesis", _refuse_part),
        ("before-parse.kinesis.GetRecords", _keep_body),
        ("before-parse.kinesis.PutRecords", _keep_body),
        ("before-parameter-build.kinesis.PutRecords", _take_body),
        ("before-call.kinesis.PutRecords", _put_body),
        ("before-parameter-build.kinesis.GetShardIterator", _note_time),
        ("before-call.kinesis.GetShardIterator", _put_time),
    ):
        client.meta.events.register(event, hook)
    return client


def sign(
    session: Session, client: Any, operation: str, parameters: Mapping[str, Any], *, allow_insecure: bool
) -> SignedRequest:
    """Sign a request that botocore cannot send, as it speaks HTTP/1.1 only; the parameters become its body."""
    credentials = session.get_credentials()
    if credentials is None:
        raise NoCredentialsError
    url = client.meta.endpoint_url.rstrip("/") + "/"
    refuse_plaintext(url, f"The URL of {operation}", allowed=allow_insecure)
    headers = {
        "Content-Type": "application/x-amz-json-1.1",
        "User-Agent": client.meta.config.user_agent,
        "X-Amz-Target": f"Kinesis_20131202.{operation}",
    }
    request = AWSRequest("POST", url, headers, json.dumps(parameters).encode())
    SigV4Auth(credentials.get_frozen_credentials(), "kinesis", client.meta.region_name).add_auth(request)
    bundle = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or default_authorities()
    return SignedRequest(url, dict(request.headers), request.body, bundle if url.startswith("https:") else None)


# Hooks: each is called with what its event has.


def _check_plaintext(request: Any, operation_name: str, *, allowed: bool, **_event: Any) -> None:
    """Refuse plain http to another machine, wherever botocore has the URL from."""
    refuse_plaintext(request.url, f"The URL of {operation_name}", allowed=allowed)


def _keep_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_event: Any) -> None:
    """Return the body of a response as it is, and leave nothing to the parser; errors are left to it."""
    if response_dict["status_code"] == _OK:
        customized_response_dict[BODY] = response_dict["body"]
        response_dict["body"] = b"{}"


def _refuse_part(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_event: Any) -> None:
    """Refuse a response that was cut: botocore would take it for an empty one.

    Not one whose body `_keep_body`, which comes first, has taken: its own parser refuses it.
    """
    body, expected = response_dict["body"], response_dict["headers"].get("content-length")
    whole = expected is None or BODY in customized_response_dict or len(body) == int(expected)
    if not whole:
        raise IncompleteReadError(actual_bytes=len(body), expected_bytes=expected)


def _take_body(params: dict[str, Any], context: dict[str, Any], **_event: Any) -> None:
    """Take a finished body out of the parameters, and leave the least that botocore takes for valid."""
    if BODY in params:
        context[BODY] = params.pop(BODY)
        params["Records"] = _VALID_RECORDS


def _put_body(params: dict[str, Any], context: Mapping[str, Any], **_event: Any) -> None:
    """Put that body into the request, before it is signed."""
    if BODY in context:
        params["body"] = context[BODY]


def _note_time(params: Mapping[str, Any], context: dict[str, Any], **_event: Any) -> None:
    """Note the time of an iterator: botocore cuts it to whole seconds."""
    if "Timestamp" in params:
        context[_TIME] = params["Timestamp"]


def _put_time(params: dict[str, Any], context: Mapping[str, Any], **_event: Any) -> None:
    if _TIME in context:
        params["body"] = json.dumps(json.loads(params["body"]) | {"Timestamp": context[_TIME]}).encode()
