"""The values that options of Pub/Sub may have, alone and together, and the names of its resources."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict
from connectors.core.options.kinds import Kind
from connectors.pubsub import FORMAT

_LONGEST_ATTRIBUTE: Final = 256
_YEAR_2000_MS: Final = 946_684_800_000
# google.protobuf.Timestamp ends there (https://protobuf.dev/reference/protobuf/google.protobuf/#timestamp).
_YEAR_10000_MICROSECONDS: Final = 253_402_300_800_000_000
_PROJECT: Final = r"[A-Za-z0-9.:-]+"
# The rules of Pub/Sub, less the length.
_ID: Final = r"[A-Za-z0-9][A-Za-z0-9_.~+%-]*"


DELETE_ON_STOP: Final = "deleteSubscriptionOnStreamStop"
"""An option of other products; see `deletion_refused`."""

_STREAM_ONLY: Final = ("startingTimestamp", "startingSnapshot", "dedupEpoch")

_ACCOUNT: Final = ("clientEmail", "privateKey", "clientId", "privateKeyId")


class SchemaMode(StrEnum):
    """Which columns the rows of a source have."""

    NATIVE = "native"
    DATABRICKS = "databricks"


def is_name(collection: str, text: str) -> bool:
    return re.fullmatch(rf"(projects/{_PROJECT}/{collection}/)?{_ID}", text) is not None


def full_path(project: str | None, collection: str, name: str) -> str:
    return name if name.startswith("projects/") else f"projects/{project}/{collection}/{name}"


def dataset_of(path: str) -> tuple[str, str]:
    """Return a topic or a subscription, by its full path, as OpenLineage names datasets."""
    _, project, collection, name = path.split("/")
    return "pubsub", f"{collection.removesuffix('s')}:{project}:{name}"


def resource(collection: str, *, several: bool = False) -> Kind[str]:

    def parse(text: str) -> str:
        names = [name.strip() for name in text.split(",")] if several else [text]
        for name in names:
            if not is_name(collection, name):
                subject = repr(name[:80]) if len(names) > 1 else "it"
                raise ValueError(f"{subject} is neither an id nor a full path")
        return ",".join(names)

    legal = f"an id, or a full path: projects/PROJECT/{collection}/ID"
    return Kind("string", f"{legal}; several with commas between them" if several else legal, parse)


def _parse_project(text: str) -> str:
    if not re.fullmatch(_PROJECT, text):
        raise ValueError("it is not a project id")
    return text


def _parse_attribute(text: str) -> str:
    if not text or len(text.encode()) > _LONGEST_ATTRIBUTE:
        raise ValueError(f"the key of an attribute has 1 to {_LONGEST_ATTRIBUTE} bytes")
    return text


def _parse_timestamp(text: str) -> int:
    """Return microseconds since 1970."""
    if re.fullmatch(r"[0-9]{1,15}", text):
        # Seconds, or digits of a date, would be some day of 1970, and the seek would redeliver everything there is.
        if 0 < int(text) < _YEAR_2000_MS:
            raise ValueError("as milliseconds it is before the year 2000; seconds are not taken")
        microseconds = int(text) * 1000
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError("it is neither a time nor a number of milliseconds") from None
        if moment.tzinfo is None:
            raise ValueError("it has no time zone")
        microseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        if microseconds < 0:
            raise ValueError("it is before 1970")
    if microseconds >= _YEAR_10000_MICROSECONDS:
        raise ValueError("it is after the year 9999")
    return microseconds


ATTRIBUTE: Final = Kind("string", "the key of an attribute", _parse_attribute)
TIMESTAMP: Final = Kind(
    "timestamp",
    "a time with its zone, such as 2026-11-21T20:00:00Z, or milliseconds since 1970: 0, or a time from 2000 on",
    _parse_timestamp,
)
PROJECT: Final = Kind("string", "the id of a project, such as my-shop", _parse_project)
TOPIC: Final = resource("topics")


def check_batch(names: Collection[str]) -> None:
    for name in _STREAM_ONLY:
        if name.lower() in names:
            what = f"The option {name} is for streams: a batch read moves no subscription"
            raise OptionError("OPTION_ILLEGAL", what, FORMAT, "Leave it out, or use spark.readStream.")


def check_credentials(names: Collection[str]) -> None:
    account = [name for name in _ACCOUNT if name.lower() in names]
    if account and "credentialsfile" in names:
        raise conflict(FORMAT, account[0], "credentialsFile", "both are credentials", "Leave one of them out.")
    for name in ("clientEmail", "privateKey"):
        if account and name not in account:
            what = f"The option {name} is required with {account[0]}"
            raise OptionError("OPTION_MISSING", what, FORMAT)


def check_subscriptions(subscription_id: str, project: str | None) -> None:
    """Refuse subscriptions without or of another project, and the same one twice."""
    names = subscription_id.split(",")
    for name in names:
        own = name.split("/")[1] if name.startswith("projects/") else project
        if own is None:
            raise project_required("subscriptionId", "subscriptions")
        if project not in {None, own}:
            mismatch = f"one says {project}, the other {own}"
            raise conflict(FORMAT, "projectId", "subscriptionId", mismatch, "With a full path, leave projectId out.")
    if len({full_path(project, "subscriptions", name) for name in names}) < len(names):
        what = "The option subscriptionId names one subscription twice"
        raise OptionError("OPTION_ILLEGAL", what, FORMAT)


def project_required(name: str, collection: str) -> OptionError:
    action = f"Give it, or give {name} as a full path: projects/PROJECT/{collection}/ID."
    return OptionError("OPTION_MISSING", "The option projectId is required", FORMAT, action)


def deletion_refused(subscription: str) -> OptionError:
    return OptionError(
        "OPTION_UNKNOWN",
        f"The option {DELETE_ON_STOP} is not supported: a stop kills the source like a crash, so the subscription of "
        "a query that is restarted would be deleted too",
        FORMAT,
        "Leave it out. After the last run of the query, `connectors spool delete-subscriptions` with its spoolLocation "
        f"deletes {subscription}; connectors.observe.watch with deleteSubscriptions does when the query is stopped.",
    )
