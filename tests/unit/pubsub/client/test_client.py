"""The connector's own descriptor of Pub/Sub's messages, held against the SDK's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from google.pubsub_v1.types import pubsub as sdk

from connectors.protobuf.schema.descriptors import is_repeated
from connectors.pubsub.client.client import MESSAGES, wire_message

# The SDK reaches these as fields of others.
INNER = {
    "Timestamp": (sdk.PubsubMessage, "publish_time"),
    "Duration": (sdk.Topic, "message_retention_duration"),
    "AttributesEntry": (sdk.PubsubMessage, "attributes"),
}


def sdk_descriptor(name: str) -> Any:
    if name in INNER:
        outer, field = INNER[name]
        return outer.pb().DESCRIPTOR.fields_by_name[field].message_type
    return getattr(sdk, name).pb().DESCRIPTOR


# Newer than the oldest SDK that the tests run with.
NEW = {"BigtableConfig", "bigtable_config"}


@pytest.mark.parametrize("name", [name for name in MESSAGES if hasattr(sdk, name) or name in INNER or name not in NEW])
def test_every_field_has_the_number_and_type_of_the_service_s_own(name: str) -> None:
    theirs = sdk_descriptor(name).fields_by_name
    for field in wire_message(name).DESCRIPTOR.fields:
        if field.name in NEW and field.name not in theirs:
            continue
        other = theirs[field.name]
        assert (field.number, field.type, is_repeated(field)) == (other.number, other.type, is_repeated(other))
        if field.message_type is not None:
            assert field.message_type.name == other.message_type.name


def test_an_unknown_field_of_the_service_is_skipped() -> None:
    theirs = sdk.Subscription(name="s", labels={"a": "b"}, retain_acked_messages=True, topic="t")
    ours = wire_message("Subscription").FromString(sdk.Subscription.serialize(theirs))
    assert (ours.name, ours.topic) == ("s", "t")


def test_the_sdk_s_types_are_not_imported_by_a_client_that_calls() -> None:
    program = (
        "import sys\n"
        "from connectors.pubsub.client.client import PubSubClient\n"
        "from connectors.pubsub.options.client import Transport\n"
        "from connectors.core.errors import ConnectorError\n"
        "from connectors.core.retry import OutageRule\n"
        "once = OutageRule(0.01, '', cap_seconds=0.01)\n"
        "client = PubSubClient(Transport('127.0.0.1:1', secure=False, local=True), outage_rule=once)\n"
        "try:\n"
        "    client.get_subscription('projects/p/subscriptions/s')\n"
        "except ConnectorError as error:\n"
        "    print(error.code)\n"
        "print('google.pubsub_v1' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["PUBSUB_UNAVAILABLE", "False"]
