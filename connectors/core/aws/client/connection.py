"""A session of botocore and a client of one service: opened when first needed, and again when its keys are refused.

botocore does not retry here: its retries could not be left when a query ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, TypeVar

from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials, RefreshableCredentials
from botocore.exceptions import ClientError, IncompleteReadError, NoCredentialsError
from botocore.loaders import Loader, create_loader
from botocore.session import Session

from connectors.core.aws.access import AwsAccessOptions, refuse_plaintext
from connectors.core.aws.errors import refuses_keys
from connectors.core.aws.provided import boto_credentials, keys_of
from connectors.core.errors import ConnectorError
from connectors.core.options.providers import Provider

T = TypeVar("T")

_CONNECT_SECONDS: Final = 10.0
_READ_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class AwsService:
    """A service as its users see it.

    Attributes:
        name: as botocore names it.
        where: what its options are of, in errors.
        credentials_error: builds the error for an exception of a credential provider that isn't botocore's own.
        connect_seconds: how long a connection may take.
        read_seconds: how long the service may be silent.
        is_read: whether a hook has taken the body of a response, by what it has put beside it.
        hooks: hooks by the events of the client.
    """

    name: str
    where: str
    credentials_error: Callable[[BaseException], ConnectorError]
    connect_seconds: float = _CONNECT_SECONDS
    read_seconds: float = _READ_SECONDS
    is_read: Callable[[Mapping[str, Any]], bool] = lambda _customized: False
    hooks: tuple[tuple[str, Callable[..., None]], ...] = ()


class AwsConnection:
    """Calls a service from several threads, ``connections`` of them at a time; errors are those of botocore."""

    def __init__(self, options: AwsAccessOptions, service: AwsService, connections: int = 10) -> None:
        self._options, self._service, self._connections = options, service, connections
        self._lock = threading.Lock()
        self._opened: tuple[Session, Any] | None = None
        self.keys = 0
        """How often the keys were read again."""

    def call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Make a call; when its keys are refused, once more with keys that are read again."""
        keys = self.keys
        try:
            response: dict[str, Any] = getattr(self.open()[1], operation)(**parameters)
        except ClientError as error:
            if not (refuses_keys(error.response) and self.renew(keys)):
                raise
            response = getattr(self.open()[1], operation)(**parameters)
        return response

    def open(self) -> tuple[Session, Any]:
        """Return session and client."""
        with self._lock:
            if self._opened is None:
                session = open_session(self._options, self._service)
                self._opened = session, _open_client(session, self._options, self._service, self._connections)
            return self._opened

    def renew(self, keys: int) -> bool:
        """Make the next call read its keys again: somebody may have changed them in a shared file.

        Nothing is done when the refused ``keys`` are not the newest. Returns False when the options give the keys.
        """
        if self._options.access_key is not None:
            return False
        with self._lock:
            if self.keys == keys:
                self._opened, self.keys = None, keys + 1
        return True

    def credentials(self) -> str:
        """Return how credentials are found, as botocore names it; a role is assumed once."""
        credentials = open_session(self._options, self._service).get_credentials()
        if credentials is None:
            raise NoCredentialsError
        credentials.get_frozen_credentials()
        return str(credentials.method)


def open_session(options: AwsAccessOptions, service: AwsService) -> Session:
    """Return a session with the credentials of the options; none of its clients uses plain http to another machine."""
    session = Session(profile=options.profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    # Clients for credentials are made from it too, and any of them may have its URL from the environment or a file.
    session.register("request-created", partial(_check_plaintext, service.where, allowed=options.allow_insecure))
    if options.region is not None:
        session.set_config_variable("region", options.region)
    if options.access_key is not None and options.secret_key is not None:
        token = options.session_token
        session.set_credentials(
            options.access_key.reveal(), options.secret_key.reveal(), token.reveal() if token is not None else None
        )
    find = partial(_find, service.credentials_error)
    if options.credential_provider is None:
        credentials = find(session.get_credentials)
    else:
        credentials = _from_provider(Provider(options.credential_provider))
    if options.role_arn is not None:
        credentials = _role_credentials(session, options, options.role_arn, credentials)
    if credentials is not None:
        session._credentials = _Credentials(credentials, find)  # noqa: SLF001 - as its providers do; it has no setter
    return session


def _from_provider(provider: Provider) -> Any:
    """Return credentials that ask a provider before they expire; those of boto3 refresh themselves."""
    result = provider()
    own = provider.attempt(partial(boto_credentials, result))
    if own is not None:
        return _Credentials(own, provider.attempt)

    def metadata(answer: Any) -> dict[str, Any]:
        keys = keys_of(provider, answer)
        return {**keys, "expiry_time": keys["expiry_time"].isoformat()}

    return RefreshableCredentials.create_from_metadata(metadata(result), lambda: metadata(provider()), provider.option)


@cache
def _loader(path: str | None) -> Loader:
    """Return what reads the models of services, once a process: that is four fifths of what a further client takes."""
    return create_loader(path)


def _role_credentials(session: Session, options: AwsAccessOptions, role: str, source: Any) -> Any:
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

    def __init__(self, credentials: Any, find: Callable[[Callable[[], Any]], Any]) -> None:
        self._credentials, self._found_by = credentials, find

    def get_frozen_credentials(self) -> Any:
        return self._found_by(self._credentials.get_frozen_credentials)

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return a function that finds a property: endpoints may hold the account, which refreshes keys too."""
        return partial(self._found_by, self._credentials.get_deferred_property(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._credentials, name)


def _find(named: Callable[[BaseException], ConnectorError], find: Callable[[], T]) -> T:
    """Call a function of botocore that finds credentials; name what is no error of its own."""
    try:
        return find()
    except Exception as error:
        if isinstance(error, ConnectorError) or type(error).__module__.startswith("botocore."):
            raise
        raise named(error) from None


def _open_client(session: Session, options: AwsAccessOptions, service: AwsService, connections: int) -> Any:
    config = Config(
        connect_timeout=service.connect_seconds,
        read_timeout=service.read_seconds,
        max_pool_connections=connections,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
        user_agent_extra="pyspark-stream-connectors",
    )
    client = session.create_client(service.name, endpoint_url=options.endpoint_url, config=config)
    client.meta.events.register(f"before-parse.{service.name}", partial(_refuse_part, service.is_read))
    for event, hook in service.hooks:
        client.meta.events.register(event, hook)
    return client


def _check_plaintext(where: str, request: Any, operation_name: str, *, allowed: bool, **_event: Any) -> None:
    """Refuse plain http to another machine, wherever botocore has the URL from."""
    refuse_plaintext(request.url, f"The URL of {operation_name}", where, allowed=allowed)


def _refuse_part(
    is_read: Callable[[Mapping[str, Any]], bool],
    response_dict: dict[str, Any],
    customized_response_dict: dict[str, Any],
    **_event: Any,
) -> None:
    """Refuse a response that was cut: botocore would take it for an empty one.

    Not one whose body a hook of the service, which comes first, has taken: its own parser refuses it.
    """
    body, expected = response_dict["body"], response_dict["headers"].get("content-length")
    whole = expected is None or is_read(customized_response_dict) or len(body) == int(expected)
    if not whole:
        raise IncompleteReadError(actual_bytes=len(body), expected_bytes=expected)
