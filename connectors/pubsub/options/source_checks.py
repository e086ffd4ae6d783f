"""Checks of the source's options against each other: functions of the names that a user gave, and of some values."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict
from connectors.core.options.kinds import choice
from connectors.pubsub import FORMAT
from connectors.pubsub.options.kinds import BatchMode, StartingPosition, full_path

__all__ = [
    "DELETE_ON_STOP",
    "check_batch",
    "check_credentials",
    "check_stream",
    "check_subscriptions",
    "deletion_refused",
]

DELETE_ON_STOP: Final = "deleteSubscriptionOnStreamStop"
"""An option of other products; see `deletion_refused`."""

_STREAM_ONLY: Final = ("startingTimestamp", "startingSnapshot", "dedupEpoch")
_BATCH_ONLY: Final = ("batchMode", "endingPosition", "peekTime", "peekMaxRows")
_ACCOUNT: Final = ("clientEmail", "privateKey", "clientId", "privateKeyId")
_UNUSED: Final = {
    BatchMode.PEEK: (("startingPosition", "endingPosition"), BatchMode.SPOOL, "a peek"),
    BatchMode.SPOOL: (("peekTime", "peekMaxRows"), BatchMode.PEEK, "a read of the spool"),
}
"""By batch mode: the options that it does not use, the mode that does, and what the mode is called."""


def check_stream(names: Collection[str], starting_position: StartingPosition | int) -> None:
    """Refuse what only a batch read can have; `names` are the options that were given, lower-cased."""
    for name in _BATCH_ONLY:
        if name.lower() in names:
            what = f"The option {name} is for batch reads, and this is a stream"
            raise OptionError("OPTION_ILLEGAL", what, FORMAT, "Leave it out, or use spark.read.")
    if not isinstance(starting_position, StartingPosition):
        what = f"The option startingPosition cannot be {starting_position}: a stream begins at a word"
        raise OptionError("OPTION_ILLEGAL", what, FORMAT, f"Give {choice(StartingPosition).legal}.")


def check_batch(names: Collection[str], mode: BatchMode) -> None:
    """Refuse what only a stream can have, and what the batch mode does not use."""
    for name in _STREAM_ONLY:
        if name.lower() in names:
            what = f"The option {name} is for streams, and this is a batch read, which moves no subscription"
            raise OptionError("OPTION_ILLEGAL", what, FORMAT, "Leave it out, or use spark.readStream.")
    unused, other, called = _UNUSED[mode]
    for name in unused:
        if name.lower() in names:
            action = f"Give batchMode={other.value}, or leave {name} out."
            raise conflict(FORMAT, name, "batchMode", f"{called} does not use it", action)


def check_credentials(names: Collection[str]) -> None:
    """Refuse half a service account, and one beside a key file."""
    account = [name for name in _ACCOUNT if name.lower() in names]
    if account and "credentialsfile" in names:
        raise conflict(FORMAT, account[0], "credentialsFile", "both are credentials", "Leave one of them out.")
    for name in ("clientEmail", "privateKey"):
        if account and name not in account:
            what = f"The option {name} is required with {account[0]}"
            raise OptionError("OPTION_MISSING", what, FORMAT, "Give both.")


def check_subscriptions(subscription_id: str, project: str | None, mode: BatchMode) -> None:
    """Refuse subscriptions without or of another project, the same one twice, and several for a peek."""
    for name in subscription_id.split(","):
        if not name.startswith("projects/"):
            if project is None:
                raise OptionError(
                    "OPTION_MISSING",
                    "The option projectId is required",
                    FORMAT,
                    "Give it, or give subscriptionId as a full path: projects/PROJECT/subscriptions/ID.",
                )
        elif project not in {None, name.split("/")[1]}:
            raise conflict(
                FORMAT,
                "projectId",
                "subscriptionId",
                f"one says {project}, the other {name.split('/')[1]}",
                "With a full path in subscriptionId, leave projectId out.",
            )
    paths = [full_path(project, "subscriptions", name) for name in subscription_id.split(",")]
    if len(set(paths)) < len(paths):
        what = "The option subscriptionId names one subscription twice"
        raise OptionError("OPTION_ILLEGAL", what, FORMAT, "Name each once.")
    if mode is BatchMode.PEEK and len(paths) > 1:
        why, action = "a peek reads one subscription", "Name one, or read the spool with batchMode=spool."
        raise conflict(FORMAT, "batchMode", "subscriptionId", why, action)


def deletion_refused(subscription: str) -> OptionError:
    """Build the error for `DELETE_ON_STOP`, with the command that deletes the subscription."""
    _, project, _, name = subscription.split("/")
    return OptionError(
        "OPTION_UNKNOWN",
        f"The option {DELETE_ON_STOP} is not supported: the source is killed in the same way by a stop and by a "
        "crash, so it would also delete the subscription of a query that is restarted",
        FORMAT,
        "Leave it out, and delete the subscription after the last run of the query: gcloud pubsub subscriptions "
        f"delete {name} --project={project}",
    )
