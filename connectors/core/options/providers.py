"""Credentials from a user's code: an option names the code, and nothing but that name travels between processes.

The name is an import path, ``module:name``, with arguments if it needs any: ``shop.vault:keys?role=reader``. Each
process that needs credentials imports it: the driver, each fetcher, each worker of an executor.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from connectors.core.errors import ConnectorError, CredentialsError, OptionError, ServiceUnavailableError
from connectors.core.options.declaration import option
from connectors.core.options.kinds import IMPORT_PATH

T = TypeVar("T")

PERMANENT: Final = (AttributeError, FileNotFoundError, ImportError, LookupError, NameError, PermissionError, TypeError)
"""What a provider raises that is wrong in itself; everything else may be the network, and may pass."""
_NOT_OF_USERS: Final = {__file__, importlib.__file__, "<frozen importlib._bootstrap>"}


def credential_provider(name: str, result: str, *, instead_of: tuple[str, ...] = ()) -> str | None:
    """Declare the option for a provider; ``result`` says what it returns."""
    doc = (
        "Your code that gives credentials: module:Class or module:function, with arguments if it takes any, as in "
        "vault:keys?role=reader. The driver, each fetcher and each executor imports it, and calls it for the first "
        f"credentials and again before these expire. It returns {result}. Arguments are no place for secrets."
    )
    return option(name, IMPORT_PATH, doc, default=None, instead_of=instead_of)


def load(path: str, where: str, code: str) -> Callable[[], Any]:
    """Return what a path names, with its arguments; an `OptionError` of this code says why it cannot be imported."""
    shown, _, arguments = path.partition("?")
    module, _, names = shown.partition(":")
    try:
        target = importlib.import_module(module)
        for name in names.split("."):
            target = getattr(target, name)
    except Exception as error:  # noqa: BLE001 - a module of the user's may raise anything
        why = f"the module has no {names}" if isinstance(error, AttributeError) else reason(error)
        raise OptionError(code, f"{shown} cannot be imported: {why}", where) from None
    if not callable(target):
        return lambda: target
    return partial(target, **dict(parse_qsl(arguments, keep_blank_values=True)))


def reason(error: Exception) -> str:
    """Return what was raised and where, without its text: that may hold a secret."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in _NOT_OF_USERS]
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    detail = error.name if isinstance(error, ImportError) else getattr(error, "response", None)
    if isinstance(detail, dict):  # of botocore: the name of the error in what a service of AWS answers
        detail = detail.get("Error", {}).get("Code")
    return f"{type(error).__name__}{f' ({detail})' if isinstance(detail, str) else ''}{place}"


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider by its import path; ``option`` names the option that gives it. Pickles as these two texts."""

    path: str
    option: str = "credentialProvider"

    @property
    def where(self) -> str:
        """The option as errors show it, without arguments."""
        return f"{self.option}={self.path.partition('?')[0]}"

    def __call__(self) -> Any:
        """Return new credentials; the import and a class's instance are done once in a process.

        Raises:
            OptionError: the provider cannot be imported.
            CredentialsError, ServiceUnavailableError: it failed; the second may pass. A `ConnectorError` of its own
                stays as it is.
        """
        return self.attempt(_source(self))

    def attempt(self, work: Callable[[], T]) -> T:
        """Run code of the user's; raise as `__call__` does."""
        try:
            return work()
        except ConnectorError:
            raise
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            kind = CredentialsError if isinstance(error, PERMANENT) else ServiceUnavailableError
            what = f"The credential provider failed: {reason(error)}"
            raise kind("CREDENTIAL_PROVIDER_FAILED", what, self.where) from None

    def refuse(self, what: str, expected: str) -> OptionError:
        """Return the error for a result that cannot be used; ``what`` describes it, ``expected`` follows "Return"."""
        return OptionError(
            "CREDENTIAL_PROVIDER", f"The credential provider returned {what}", self.where, f"Return {expected}."
        )


@cache
def _source(provider: Provider) -> Callable[[], Any]:
    factory = load(provider.path, provider.where, "CREDENTIAL_PROVIDER")
    if not (isinstance(factory, partial) and isinstance(factory.func, type)):
        return factory
    instance = provider.attempt(factory)
    return instance if callable(instance) else lambda: instance


def token_of(provider: Provider, result: Any, *others: str) -> dict[str, Any]:
    """Return a dict of obstore, ``token`` or one of the ``others``, and ``expires_at``: None, or a time with its zone.

    Raises an `OptionError` for anything else.
    """
    names = ("token", *others)
    expected = f"a dict of {' or '.join(names)} and expires_at (a datetime in UTC, or None)"
    if not isinstance(result, Mapping):
        raise provider.refuse(f"a {type(result).__name__}", expected)
    name = next((name for name in names if result.get(name)), None)
    expiry = result.get("expires_at")
    if name is None or "expires_at" not in result or not isinstance(expiry, datetime | None):
        raise provider.refuse("a dict without one of its entries, or with another type of it", expected)
    if expiry is not None and expiry.tzinfo is None:
        expiry = expiry.replace(tzinfo=UTC)
    return {name: result[name], "expires_at": expiry}
