"""What is done to botocore's requests and answers on their way; see `connectors.kinesis.client.client` for why.

Each function is a handler of one of botocore's events, and is called with what that event has.

Credentials of botocore whose errors have a name.

botocore finds credentials, and makes them anew, while it signs. What goes wrong there comes as it is: of a token's file
that is not there, of a program or a token service that answers nonsense.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from connectors.core.errors import ConnectorError
from connectors.kinesis.client.errors import credentials_error
from connectors.kinesis.options.client import refuse_plaintext

__all__ = [
    "BODY",
    "NamedCredentials",
    "NotSent",
    "SignedRequest",
    "check_plaintext",
    "exact_time",
    "keep_body",
    "named",
    "note_time",
    "put_body",
    "take_body",
]


BODY: Final = "RawBody"
"""Under this name a body passes botocore by: of an answer to the caller, of a request from it."""

_TIME: Final = "iterator_time"
_OK: Final = 200
_VALID_RECORDS: Final = [{"Data": b"", "PartitionKey": "0"}]


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request of HTTP, with its signature; it is good for some minutes.

    Attributes:
        url: where to send it.
        headers: the signature among them.
        body: what to send.
        certificates: a file with the authorities that botocore trusts; None for ``http:``.
        keys: with which keys it is signed: how often they had been read anew.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes
    certificates: str | None
    keys: int = 0


class NotSent(Exception):  # noqa: N818 - it is no error
    """Takes a request out of botocore, before it is sent."""

    def __init__(self, request: SignedRequest) -> None:
        super().__init__("not sent")
        self.request = request


def check_plaintext(request: Any, operation_name: str, *, allowed: bool, **_event: Any) -> None:
    """Refuse a request for another machine by plain http before it is sent, wherever botocore has its URL from.

    Raises:
        OptionError: it is such, and ``allowed`` is not set.
    """
    refuse_plaintext(request.url, f"The URL of {operation_name}", allowed=allowed)


def keep_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_event: Any) -> None:
    """Give the body of an answer out as it is, and nothing to the parser; errors are left to it."""
    if response_dict["status_code"] == _OK:
        customized_response_dict[BODY] = response_dict["body"]
        response_dict["body"] = b"{}"


def take_body(params: dict[str, Any], context: dict[str, Any], **_event: Any) -> None:
    """Keep the body of a request that is written already, and leave the least that botocore takes for valid."""
    if BODY in params:
        context[BODY] = params.pop(BODY)
        params["Records"] = _VALID_RECORDS


def put_body(params: dict[str, Any], context: Mapping[str, Any], **_event: Any) -> None:
    """Put that body into the request, before it is signed."""
    if BODY in context:
        params["body"] = context[BODY]


def note_time(params: Mapping[str, Any], context: dict[str, Any], **_event: Any) -> None:
    """Keep the time that an iterator or a subscription begins at: botocore cuts it to whole seconds."""
    place = params.get("StartingPosition", params)
    if "Timestamp" in place:
        context[_TIME] = place["Timestamp"]


def exact_time(params: dict[str, Any], context: Mapping[str, Any], **_event: Any) -> None:
    """Put that time into the request."""
    if _TIME in context:
        body = json.loads(params["body"])
        body.get("StartingPosition", body)["Timestamp"] = context[_TIME]
        params["body"] = json.dumps(body).encode()


T = TypeVar("T")


def named(find: Callable[[], T]) -> T:
    """What a function of botocore that finds credentials gives.

    Raises:
        CredentialsError: it failed by an error that is none of botocore's own; those pass.
    """
    try:
        return find()
    except Exception as error:
        if isinstance(error, ConnectorError) or type(error).__module__.startswith("botocore."):
            raise
        raise credentials_error(error) from None


class NamedCredentials:
    """Credentials of botocore, which signs by what `get_frozen_credentials` gives.

    Args:
        found: what they stand for; all else is asked of it.
    """

    def __init__(self, found: Any) -> None:
        self._found = found

    def get_frozen_credentials(self) -> Any:
        """The keys of now.

        Raises:
            CredentialsError: see `named`.
        """
        return named(self._found.get_frozen_credentials)

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """A function that gives a property: endpoints may hold the account, and asking for it makes keys anew too."""
        find = self._found.get_deferred_property(name)
        return lambda: named(find)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)
