"""The URLs of object stores, as users write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from connectors.core.options.kinds import CUT_FROM_URL

__all__ = ["ObjectUrl", "Version", "parse_object_url"]

Version = Mapping[str, Any]
"""The entity tag or generation by which a store identifies the content of an object."""

_KINDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "azure": "az", "abfs": "az", "abfss": "az"}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_ACCOUNT = re.compile(r"([a-z0-9]{3,24})\.(dfs|blob)\.core\.[a-z0-9.]+")


@dataclass(frozen=True, slots=True)
class ObjectUrl:
    """A place in an object store; as text it is the same for every spelling of the URL.

    `kind` is ``s3``, ``gs`` or ``az``; `prefix` has no ``/`` at its ends and may be empty, as may the Azure `account`.
    """

    kind: str
    bucket: str
    prefix: str
    account: str = ""

    def __str__(self) -> str:
        prefix = f"/{self.prefix}" if self.prefix else ""
        if self.account:
            return f"abfss://{self.bucket}@{self.account}.dfs.core.windows.net{prefix}"
        return f"{self.kind}://{self.bucket}{prefix}"


def parse_object_url(text: str) -> ObjectUrl:
    """Parse ``s3://``, ``gs://``, ``az://`` or ``abfss://``.

    Raises `ValueError` with a reason that can be shown; it never repeats the URL, which may hold a secret.
    """
    url = urlsplit(text)
    scheme = url.scheme.lower()
    if scheme not in _KINDS:
        raise ValueError(f"{scheme} locations are not supported, only s3, gs, az and abfss are")
    if CUT_FROM_URL.search(text):
        raise ValueError("an object store's URL has no ?, # or control characters")
    user, at, host = url.netloc.rpartition("@")
    account = ""
    if scheme in {"abfs", "abfss"}:
        match = _ACCOUNT.fullmatch(host)
        if not at or match is None:
            raise ValueError(f"it is not like {scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER")
        account, bucket = match[1], user
    elif at:
        raise ValueError("credentials do not belong in a URL; give them as options or in the environment")
    else:
        bucket = host
    if not _BUCKET.fullmatch(bucket):
        raise ValueError("it names no bucket")
    parts = [part for part in url.path.split("/") if part]
    if any(part in {".", ".."} for part in parts):
        raise ValueError("it has . or .. in its path")
    return ObjectUrl(_KINDS[scheme], bucket, "/".join(parts), account)
