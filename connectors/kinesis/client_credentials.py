"""Credentials of botocore whose errors have a name.

botocore finds credentials, and makes them anew, while it signs. What goes wrong there comes as it is: of a token's file
that is not there, of a program or a token service that answers nonsense.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from connectors.core.errors import ConnectorError
from connectors.kinesis.client_errors import credentials_error

__all__ = ["NamedCredentials", "named"]

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
