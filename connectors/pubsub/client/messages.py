"""The messages of Pub/Sub's API that the connector sends and reads, by a descriptor of our own.

It names only the messages and fields we use, with the names and numbers of google.pubsub.v1
(https://github.com/googleapis/googleapis/blob/master/google/pubsub/v1/pubsub.proto); what else the service sends is
skipped, as protobuf does with unknown fields. The SDK's own types are not used for this: importing them loads all of
its services, which took 0.5 s of processor time at the start of every reader and every fetcher, as much as all other
imports together. A test holds this list against the SDK's.

Two entries differ from that file and not on the wire: ``PubsubMessage.attributes`` is a list of entries and no map,
so that the order is kept, and ``PullResponse`` is read as a ``StreamingPullResponse``, whose first field it shares.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["MESSAGES", "wire_message"]

_PACKAGE: Final = "connectors.pubsub"

MESSAGES: Final = {
    "Timestamp": {"seconds": (1, "INT64"), "nanos": (2, "INT32")},
    "Duration": {"seconds": (1, "INT64"), "nanos": (2, "INT32")},
    "AttributesEntry": {"key": (1, "STRING"), "value": (2, "STRING")},
    "PubsubMessage": {
        "data": (1, "BYTES"),
        "attributes": (2, "AttributesEntry[]"),
        "message_id": (3, "STRING"),
        "publish_time": (4, "Timestamp"),
        "ordering_key": (5, "STRING"),
    },
    "ReceivedMessage": {
        "ack_id": (1, "STRING"),
        "message": (2, "PubsubMessage"),
        "delivery_attempt": (3, "INT32"),
    },
    "StreamingPullResponse": {"received_messages": (1, "ReceivedMessage[]")},
    "StreamingPullRequest": {
        "subscription": (1, "STRING"),
        "stream_ack_deadline_seconds": (5, "INT32"),
        "client_id": (6, "STRING"),
        "max_outstanding_messages": (7, "INT64"),
        "max_outstanding_bytes": (8, "INT64"),
    },
    "SeekRequest": {"subscription": (1, "STRING"), "time": (2, "Timestamp"), "snapshot": (3, "STRING")},
    "GetSubscriptionRequest": {"subscription": (1, "STRING")},
    "DeleteSubscriptionRequest": {"subscription": (1, "STRING")},
    "GetTopicRequest": {"topic": (1, "STRING")},
    "Topic": {"name": (1, "STRING"), "message_retention_duration": (8, "Duration")},
    "PushConfig": {"push_endpoint": (1, "STRING")},
    "BigQueryConfig": {"table": (1, "STRING")},
    "CloudStorageConfig": {"bucket": (1, "STRING")},
    "BigtableConfig": {"table": (1, "STRING")},
    "DeadLetterPolicy": {"dead_letter_topic": (1, "STRING")},
    "Subscription": {
        "name": (1, "STRING"),
        "topic": (2, "STRING"),
        "push_config": (4, "PushConfig"),
        "ack_deadline_seconds": (5, "INT32"),
        "message_retention_duration": (8, "Duration"),
        "enable_message_ordering": (10, "BOOL"),
        "filter": (12, "STRING"),
        "dead_letter_policy": (13, "DeadLetterPolicy"),
        "detached": (15, "BOOL"),
        "enable_exactly_once_delivery": (16, "BOOL"),
        "topic_message_retention_duration": (17, "Duration"),
        "bigquery_config": (18, "BigQueryConfig"),
        "cloud_storage_config": (22, "CloudStorageConfig"),
        "bigtable_config": (27, "BigtableConfig"),
    },
}
"""Of each message the fields: name, number, and type; one in capitals is a scalar's, others name a message."""


@cache
def wire_message(name: str) -> Any:
    """Return the class of a message of `MESSAGES`, by its name."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    """Build a pool of our own: in the default one, two versions of a file would clash."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="connectors/pubsub/messages.proto", package=_PACKAGE, syntax="proto3"
    )
    for message, fields in MESSAGES.items():
        declared = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            target = declared.field.add(name=field, number=number)
            target.label = field_type.LABEL_REPEATED if kind.endswith("[]") else field_type.LABEL_OPTIONAL
            if kind.isupper():
                target.type = field_type.Type.Value(f"TYPE_{kind}")
            else:
                target.type = field_type.TYPE_MESSAGE
                target.type_name = f".{_PACKAGE}.{kind.removesuffix('[]')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool
