"""Credential providers for tests, in the shapes that a user's may have; each call leaves a line in a file.

A process of its own, such as a fetcher, is told the file by an argument of the import path.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from botocore.credentials import Credentials, RefreshableCredentials
from botocore.session import Session

CANARY = "canary-59c0de"
"""Each secret of a provider here, alone or as a part."""
HOUR = timedelta(hours=1)


def calls(log: Path) -> list[str]:
    """Return the process id of each call."""
    return log.read_text().split() if log.exists() else []


def _called(log: str) -> int:
    if not log:
        return 1
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len(calls(Path(log)))


def _metadata(number: int, life: timedelta) -> dict[str, Any]:
    return {
        "access_key": f"ASIAPROVIDED{number}",
        "secret_key": f"{CANARY}-secret",
        "token": f"{CANARY}-token",
        "expiry_time": (datetime.now(UTC) + life).isoformat(),
    }


def botocore_dict(log: str = "", seconds: str = "3600") -> dict[str, Any]:
    return _metadata(_called(log), timedelta(seconds=float(seconds)))


def obstore_dict(log: str = "", seconds: str = "3600") -> dict[str, Any]:
    return {
        "access_key_id": f"ASIAPROVIDED{_called(log)}",
        "secret_access_key": f"{CANARY}-secret",
        "token": f"{CANARY}-token",
        "expires_at": datetime.now(UTC) + timedelta(seconds=float(seconds)),
    }


def sts_response(log: str = "") -> dict[str, Any]:
    """The entry Credentials of a response of STS."""
    return {
        "AccessKeyId": f"ASIAPROVIDED{_called(log)}",
        "SecretAccessKey": f"{CANARY}-secret",
        "SessionToken": f"{CANARY}-token",
        "Expiration": datetime.now(UTC) + HOUR,
    }


def without_expiry(log: str = "") -> dict[str, Any]:
    return {"access_key": f"ASIAPROVIDED{_called(log)}", "secret_key": f"{CANARY}-secret"}


def boto_credentials(log: str = "") -> Credentials:
    return Credentials(f"ASIAPROVIDED{_called(log)}", f"{CANARY}-secret", f"{CANARY}-token")


def boto_refreshable(log: str = "", seconds: str = "3600") -> RefreshableCredentials:
    def refresh() -> dict[str, Any]:
        return botocore_dict(log, seconds)

    return RefreshableCredentials.create_from_metadata(refresh(), refresh, "test")


def boto_session(log: str = "") -> Session:
    session = Session()
    session.set_credentials(f"ASIAPROVIDED{_called(log)}", f"{CANARY}-secret", f"{CANARY}-token")
    return session


class BotocoreClass:
    """A class whose instances are called, and made once in a process."""

    made = 0

    def __init__(self, log: str = "", seconds: str = "3600") -> None:
        type(self).made += 1
        self._log, self._seconds = log, seconds
        self.secret = CANARY

    def __call__(self) -> dict[str, Any]:
        return botocore_dict(self._log, self._seconds)

    class Inner(Credentials):
        """A class in a class, whose instances are credentials themselves."""

        def __init__(self) -> None:
            super().__init__("ASIAPROVIDED1", f"{CANARY}-secret")


def token_dict(log: str = "", seconds: str = "3600") -> dict[str, Any]:
    """For Google and Azure."""
    return {"token": f"{CANARY}-{_called(log)}", "expires_at": datetime.now(UTC) + timedelta(seconds=float(seconds))}


class AzureCredential:
    """As those of azure-identity."""

    class Token:
        token = f"{CANARY}-azure"
        expires_on = int((datetime.now(UTC) + HOUR).timestamp())

    def get_token(self, *scopes: str) -> Token:
        assert scopes == ("https://storage.azure.com/.default",)
        return self.Token()


def google_credentials(log: str = "", seconds: str = "3600") -> Any:
    from google.auth.credentials import Credentials as Google  # noqa: PLC0415 - of one connector only

    class Fixed(Google):
        def refresh(self, request: Any) -> None:
            assert callable(request)
            self.token = f"{CANARY}-{_called(log)}"
            self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=float(seconds))

    credentials: Any = Fixed
    return credentials()


# Providers that fail


def failing(kind: str = "RuntimeError", log: str = "", good: str = "0") -> dict[str, Any]:
    """Fail with a secret in the text, after so many good calls.

    Their keys last twelve minutes: botocore asks for new ones, and goes on with these if there are none.
    """
    number = _called(log)
    if number <= int(good):
        return _metadata(number, timedelta(minutes=12))
    kinds: dict[str, Callable[[str], Exception]] = {
        one.__name__: one for one in (RuntimeError, TimeoutError, PermissionError, KeyError, TypeError)
    }
    raise kinds[kind](f"the vault refuses {CANARY}")


def failing_token(log: str = "", good: str = "0") -> dict[str, Any]:
    number = _called(log)
    if number <= int(good):
        return {"token": f"{CANARY}-{number}", "expires_at": datetime.now(UTC) + timedelta(seconds=1)}
    raise RuntimeError(f"the vault refuses {CANARY}")


class NotMade:
    def __init__(self) -> None:
        raise ConnectionError(f"no vault for {CANARY}")


def nothing() -> None:
    return None


def only_text() -> str:
    return CANARY


def no_secret_key() -> dict[str, Any]:
    return {"access_key": CANARY, "token": CANARY}


def bad_expiry() -> dict[str, Any]:
    return {**without_expiry(), "expiry_time": CANARY}


def line_break() -> dict[str, Any]:
    return {**without_expiry(), "token": f"{CANARY}\nX-Evil: 1"}


NO_FUNCTION = without_expiry


def account_key() -> dict[str, Any]:
    return {"access_key": "Y2FuYXJ5LTU5YzBkZQ==", "expires_at": None}


def sas_token() -> dict[str, Any]:
    return {"sas_token": f"sv=1&sig={CANARY}", "expires_at": None}


def recovering(log: str) -> dict[str, Any]:
    """Fail once."""
    if _called(log) == 1:
        raise TimeoutError(CANARY)
    return without_expiry()
