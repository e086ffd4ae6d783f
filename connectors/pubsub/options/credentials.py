"""Credentials that are given by options instead of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from connectors.core.errors import CredentialsError

__all__ = ["ServiceAccount", "read_key_file", "unusable"]

_TOKEN_ENDPOINT: Final = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address, no secret


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    r"""The key of a service account; its ``repr`` does not show the private key.

    Attributes:
        client_email: the name of the account.
        private_key: its private key, in the PEM format; line ends may be written as ``\n``.
        client_id: the id of the account, or an empty text.
        private_key_id: the id of the key, or an empty text.
    """

    client_email: str
    private_key: str = field(repr=False)
    client_id: str = ""
    private_key_id: str = ""

    def to_key_file(self) -> dict[str, Any]:
        """What Google's key file for it would hold."""
        return {
            "type": "service_account",
            "client_email": self.client_email,
            "client_id": self.client_id,
            # A key file is JSON; who copies the key out of it often copies its escapes too.
            "private_key": self.private_key.replace("\\n", "\n"),
            "private_key_id": self.private_key_id,
            "token_uri": _TOKEN_ENDPOINT,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self | None:
        """The account that `dataclasses.asdict` made an object of; None of None."""
        return None if value is None else cls(**value)


def unusable(source: Path | ServiceAccount, problem: str) -> CredentialsError:
    """The error for credentials that cannot be used; it shows nothing that may be secret.

    Args:
        source: the key file, or the account.
        problem: what is wrong with the file, as it follows "the file".
    """
    if isinstance(source, Path):
        return CredentialsError(
            "CREDENTIALS_UNREADABLE",
            f"The file that the option credentialsFile names {problem}",
            str(source),
            "Give the path of a key file, as it was downloaded, that driver and fetchers can read.",
        )
    return CredentialsError(
        "CREDENTIALS_UNREADABLE",
        "The options clientEmail and privateKey are no key of a service account",
        source.client_email,
        "Give privateKey as it stands in the key file, from -----BEGIN to the end, or give credentialsFile.",
    )


def read_key_file(path: Path) -> dict[str, Any]:
    """What a key file holds.

    Raises:
        CredentialsError: it cannot be read, or is no JSON object.
    """
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unusable(path, f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise unusable(path, "is not JSON") from None
    if not isinstance(info, dict):
        raise unusable(path, "is not a JSON object")
    return info
