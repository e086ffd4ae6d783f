"""The options of the ``pubsub`` sink, each declared once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connectors.core.options.declaration import conflict, option, parse_options
from connectors.core.options.kinds import BYTES, Kind
from connectors.pubsub import FORMAT
from connectors.pubsub.options.client import PubSubClientOptions, connection_transport
from connectors.pubsub.options.kinds import ATTRIBUTE, TOPIC, dataset_of, full_path, project_required

_ASYNC_PROGRESS: Final = "asyncprogresstrackingenabled"


def _parse_attribute(text: str) -> str:
    if text.lower() == "none":
        return ""
    if text.startswith("goog"):
        raise ValueError("it must not begin with goog, which is reserved")
    return ATTRIBUTE.parse(text)


_ATTRIBUTE: Final = Kind("string", "the name of an attribute, or none", _parse_attribute)


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubWriteOptions(PubSubClientOptions):
    """The options of the sink, for streams and batch writes. Made by `parse_write_options`."""

    topic_id: str | None = option(
        "topicId",
        TOPIC,
        "The topic of all rows, as id or full path; wins over a column topic. Required, unless there is a column "
        "topic.",
        default=None,
        aliases=("topic",),
    )
    id_attribute: str = option(
        "idAttribute",
        _ATTRIBUTE,
        "Each message gets this attribute: query/batch/partition/row/digest, the same when a batch or a task is "
        "repeated; the digest is of the row's content. A reader with dedupAttribute=spark_uid then has each row once, "
        "if the same rows come in the same order when they are computed again, and else some twice. It replaces an "
        "attribute of that name in the row. With none, no attribute is added.",
        default="spark_uid",
    )
    max_outstanding_bytes: int = option(
        "maxOutstandingBytes",
        BYTES,
        "The most bytes of messages that a task has encoded and the service has not yet acknowledged; a single "
        "request that is larger is still sent.",
        default="64mb",
        minimum="1",
    )

    @property
    def topic(self) -> str | None:
        return None if self.topic_id is None else full_path(self.project_id, "topics", self.topic_id)

    def datasets(self) -> list[tuple[str, str]]:
        """Return the topic as OpenLineage names datasets; none if a column names topics."""
        return [] if self.topic is None else [dataset_of(self.topic)]


def parse_write_options(raw: Mapping[str, str], environ: Mapping[str, str]) -> PubSubWriteOptions:
    """Parse and check the options of a sink; raise OptionError for what is unknown, missing or illegal."""
    own = {key: value for key, value in raw.items() if key.lower() != _ASYNC_PROGRESS}
    options = parse_options(PubSubWriteOptions, own, environ, FORMAT)
    asynchronous = next((value for key, value in raw.items() if key.lower() == _ASYNC_PROGRESS), "false")
    if options.id_attribute and str(asynchronous).lower() == "true":
        raise conflict(
            FORMAT,
            "idAttribute",
            "asyncProgressTrackingEnabled",
            "batches are not logged then, so a repeated one may hold other rows under the same ids",
            "Leave asyncProgressTrackingEnabled out, or set idAttribute=none.",
        )
    if options.topic_id is not None and options.project_id is None and not options.topic_id.startswith("projects/"):
        raise project_required("topicId", "topics")
    return dataclasses.replace(options, transport=connection_transport(options, environ))
