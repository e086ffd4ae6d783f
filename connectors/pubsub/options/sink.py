"""The options of the ``pubsub`` sink, each declared once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option, parse_options
from connectors.core.options.kinds import BYTES, DURATION, INTEGER, PATH, Kind
from connectors.pubsub.options.client import PubSubConnectionOptions, connection_transport
from connectors.pubsub.options.resource_names import PROJECT, TOPIC, full_path

__all__ = ["PubSubWriteOptions", "parse_write_options"]

_CONNECTOR: Final = "pubsub"
_ASYNC_PROGRESS: Final = "asyncprogresstrackingenabled"
_LONGEST_ATTRIBUTE: Final = 256


def _parse_attribute(text: str) -> str:
    if text.lower() == "none":
        return ""
    if not text or text.startswith("goog") or len(text.encode()) > _LONGEST_ATTRIBUTE:
        raise ValueError(f"an attribute has 1 to {_LONGEST_ATTRIBUTE} bytes, and does not begin with goog")
    return text


_ATTRIBUTE: Final = Kind("string", "the name of an attribute, or none", str, _parse_attribute)


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubWriteOptions(PubSubConnectionOptions):
    """The options of the sink, for streams and batch writes. Made by `parse_write_options`."""

    project_id: str | None = option(
        "projectId",
        PROJECT,
        "Project of the topics that are given by their ids. May be left out when all are full paths.",
        default=None,
    )
    credentials_file: Path | None = option(
        "credentialsFile",
        PATH,
        "A key file of a service account, or another file of Google credentials, that every executor can read under "
        "this path. Application default credentials when absent.",
        default=None,
        instead_of=("clientEmail", "clientId", "privateKey", "privateKeyId", "serviceCredential"),
        sensitive=True,
    )
    topic_id: str | None = option(
        "topicId",
        TOPIC,
        "The topic of all rows, as id or full path; wins over a column topic, which it makes unnecessary.",
        default=None,
        aliases=("topic",),
    )
    id_attribute: str = option(
        "idAttribute",
        _ATTRIBUTE,
        "Each message gets this attribute: query/batch/partition/row/digest, the same when a batch or a task is "
        "repeated; the digest is of the row's content. A reader with dedupAttribute=spark_uid then has each row once, "
        "if the same rows come in the same order when they are computed again, and else some twice. It replaces an "
        "attribute of that name in the row. none stamps nothing.",
        default="spark_uid",
    )
    max_outstanding_requests: int = option(
        "maxOutstandingRequests",
        INTEGER,
        "The most requests that a task has under way. Those of one ordering key go out one after the other.",
        default="16",
        minimum="1",
        maximum="1000",
    )
    max_outstanding_bytes: int = option(
        "maxOutstandingBytes",
        BYTES,
        "The most bytes of messages that a task has made ready and not yet seen acknowledged; one request that alone "
        "is larger passes alone.",
        default="64mb",
        minimum="1",
    )
    publish_timeout: float = option(
        "publishTimeout",
        DURATION,
        "How long a request is tried again after errors that may pass; then the task fails.",
        default="10m",
        minimum="1s",
        maximum="1d",
    )

    @property
    def topic(self) -> str | None:
        """The full path of the topic of all rows."""
        return None if self.topic_id is None else full_path(self.project_id, "topics", self.topic_id)


def parse_write_options(raw: Mapping[str, str], environ: Mapping[str, str]) -> PubSubWriteOptions:
    """Parse and check the options of a sink; reads nothing but the arguments.

    Args:
        raw: what Spark hands over: names in any case to texts.
        environ: the environment of the driver.

    Raises:
        OptionError: an option is unknown, missing, illegal, or in conflict with another.
    """
    given = {key: value for key, value in raw.items() if key.lower() != _ASYNC_PROGRESS}
    options = parse_options(PubSubWriteOptions, given, environ, _CONNECTOR)
    asynchronous = next((value for key, value in raw.items() if key.lower() == _ASYNC_PROGRESS), "false")
    if options.id_attribute and str(asynchronous).lower() == "true":
        raise conflict(
            _CONNECTOR,
            "idAttribute",
            "asyncProgressTrackingEnabled",
            "batches are not logged then, so a repeated one may hold other rows under the same ids",
            "Leave asyncProgressTrackingEnabled out, or set idAttribute=none.",
        )
    if options.topic_id is not None and options.project_id is None and not options.topic_id.startswith("projects/"):
        raise OptionError(
            "OPTION_MISSING",
            "The option projectId is required",
            _CONNECTOR,
            "Give it, or give topicId as a full path: projects/PROJECT/topics/ID.",
        )
    return dataclasses.replace(options, transport=connection_transport(options, environ))
