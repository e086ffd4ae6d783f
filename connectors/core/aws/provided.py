"""Keys of AWS as a credential provider may return them; no SDK is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from connectors.core.options.providers import Provider

EXPECTED: Final = (
    "a dict of access_key, secret_key, token and expiry_time (as of botocore), or of access_key_id, secret_access_key, "
    "token and expires_at (as of obstore), or credentials or a session of boto3"
)
_SPELLINGS: Final = (
    ("access_key", "secret_key", "token", "expiry_time"),
    ("access_key_id", "secret_access_key", "token", "expires_at"),
    ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"),
)
"""Of botocore, of obstore, and of the responses of STS."""
_SHORTEST: Final = timedelta(minutes=10)
"""How long the keys of refreshable credentials are valid at least, by botocore's own rule."""
NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)


def keys_of(provider: Provider, result: Any) -> dict[str, Any]:
    """Return botocore's metadata for what a provider has returned, but ``expiry_time`` as a `datetime`.

    Raises as the provider does, and an `OptionError` for anything else than keys.
    """
    if (credentials := provider.attempt(lambda: boto_credentials(result))) is not None:
        frozen = provider.attempt(credentials.get_frozen_credentials)
        expiry = datetime.now(UTC) + _SHORTEST if hasattr(credentials, "refresh_needed") else NEVER
        return _checked(provider, (frozen.access_key, frozen.secret_key, frozen.token, expiry))
    if not isinstance(result, Mapping):
        raise provider.refuse(f"a {type(result).__name__}", EXPECTED)
    for names in _SPELLINGS:
        if names[0] in result:
            return _checked(provider, tuple(result.get(name) for name in names))
    raise provider.refuse("a dict without an access key", EXPECTED)


def boto_credentials(result: Any) -> Any:
    """Return what botocore signs with, of credentials or a session; None for anything else."""
    if callable(getattr(result, "get_credentials", None)):
        result = result.get_credentials()
    methods = ("get_frozen_credentials", "get_deferred_property")
    return result if all(callable(getattr(result, name, None)) for name in methods) else None


def _checked(provider: Provider, values: tuple[Any, ...]) -> dict[str, Any]:
    access_key, secret_key, token, expiry = values
    texts = (access_key, secret_key, *(() if token is None else (token,)))
    if not all(isinstance(text, str) and text and text.isascii() and text.isprintable() for text in texts):
        raise provider.refuse("a key or token that is empty, no text, or holds what no key has", EXPECTED)
    if isinstance(expiry, str):
        try:
            expiry = datetime.fromisoformat(expiry)
        except ValueError:
            raise provider.refuse("a time of expiry that is not in ISO 8601", EXPECTED) from None
    if not isinstance(expiry, datetime | None):
        raise provider.refuse(f"a {type(expiry).__name__} as the time of expiry", EXPECTED)
    if expiry is not None and expiry.tzinfo is None:
        expiry = expiry.replace(tzinfo=UTC)
    return {"access_key": access_key, "secret_key": secret_key, "token": token, "expiry_time": expiry or NEVER}
