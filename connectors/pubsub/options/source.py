"""The options of the ``pubsub`` source, each declared once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from connectors.core.options.declaration import conflict, option, refined
from connectors.core.options.kinds import INTEGER, SECRET, STRING, Secret, choice
from connectors.pubsub import FORMAT
from connectors.pubsub.options.client import (
    Credentials,
    PubSubClientOptions,
    ServiceAccount,
    client_credentials,
    connection_transport,
)
from connectors.pubsub.options.kinds import (
    ATTRIBUTE,
    DELETE_ON_STOP,
    TIMESTAMP,
    TOPIC,
    SchemaMode,
    check_batch,
    check_credentials,
    check_subscriptions,
    dataset_of,
    deletion_refused,
    full_path,
    resource,
)
from connectors.spool.options import SpoolOptions, parse_spool_options, place_spool


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubReadOptions(PubSubClientOptions, SpoolOptions):
    """The options of a reader, with those of every spool. Made by `parse_read_options`."""

    subscription_id: str = option(
        "subscriptionId",
        resource("subscriptions", several=True),
        "The subscription to read: its id, or its full path. Several, with commas between them, are read into one "
        "spool; each has its own fetchers, and the column subscription says where a row comes from. A spool belongs "
        "to the subscriptions it was created for.",
    )
    topic_id: str | None = option(
        "topicId",
        TOPIC,
        "Topic of the subscription, as id or full path. With it a subscription that does not exist is created, if the "
        "spool is new; a subscription of another topic is refused.",
        default=None,
    )
    max_bytes_per_trigger: int | None = refined(
        SpoolOptions, "max_bytes_per_trigger", "Payload, attributes and ordering key count."
    )
    dedup_horizon: float | None = refined(
        SpoolOptions,
        "dedup_horizon",
        "Pub/Sub retains a message for the larger of the subscription's and the topic's retention.",
    )
    fetchers: int = refined(
        SpoolOptions,
        "fetchers",
        "A subscription with message ordering is such a source.",
        aliases=("numFetchPartitions",),
    )
    fail_on_data_loss: bool = refined(
        SpoolOptions,
        "fail_on_data_loss",
        "It also goes on when the subscription of a used spool was deleted and topicId allows to create it again: what "
        "it had not delivered is lost.",
    )
    streams: int = option(
        "streams",
        INTEGER,
        "How many pull streams each fetcher opens. The service gives about 10 MB/s a stream; about 16 streams of "
        "1 KB messages saturate one processor.",
        default="4",
        minimum="1",
        maximum="100",
    )
    starting_timestamp: int | None = option(
        "startingTimestamp",
        TIMESTAMP,
        "Seek the subscription to this time: what was published since is read again, as far as the subscription or "
        "its topic retains acknowledged messages, and what is older is skipped. Done once for each value, so the "
        "option may stay where it is; it moves the subscription for everyone who reads it.",
        default=None,
    )
    starting_snapshot: str | None = option(
        "startingSnapshot",
        resource("snapshots"),
        "Seek the subscription to this snapshot, an id or a full path: what was not acknowledged then, and what was "
        "published since, is read again. Done once for each value.",
        default=None,
    )
    dedup_epoch: int | None = option(
        "dedupEpoch",
        INTEGER,
        "Another number makes the query discard the ids of the messages it has read, once, so that what the service "
        "redelivers gives rows again: for a seek that was done outside of the query. With startingTimestamp or "
        "startingSnapshot another number does the same seek once more.",
        default=None,
        minimum="0",
    )
    dedup_attribute: str | None = option(
        "dedupAttribute",
        ATTRIBUTE,
        "Messages with the same value of this attribute are duplicates, also when their message ids differ, because "
        "they were published twice: the first one stays, for dedupHorizon. A message without it, or with an empty "
        "value, is identified by its message id alone; connectors.spool.stats counts these as "
        "dedup_attribute_missing. It costs 16 bytes more for each id.",
        default=None,
    )
    schema_mode: SchemaMode = option(
        "schemaMode",
        choice(SchemaMode),
        "databricks gives the four columns of Databricks' source, for jobs that move from there: messageId, payload, "
        "attributes as JSON text, and publishTimestampInMillis. The rows in the spool are the same, so the mode may "
        "be changed.",
        default="native",
    )
    client_email: str | None = option(
        "clientEmail",
        STRING,
        "Name of a service account, for credentials by options as on Databricks; needs privateKey. A credentialsFile "
        "does the same with no key in the code.",
        default=None,
    )
    client_id: str | None = option("clientId", STRING, "Id of that service account.", default=None)
    private_key: Secret | None = option(
        "privateKey",
        SECRET,
        "Private key of that service account, in the PEM format; line ends may be written as \\n.",
        default=None,
        multiline=True,
    )
    private_key_id: str | None = option("privateKeyId", STRING, "Id of that key.", default=None, sensitive=True)

    @property
    def project(self) -> str:
        return self.subscription.split("/")[1]

    @property
    def subscription(self) -> str:
        """The full path of the subscription; of the first of several."""
        return self.subscriptions[0]

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The full paths of all subscriptions, sorted: the spool stores their indexes, whatever the order here."""
        names = self.subscription_id.split(",")
        return tuple(sorted(full_path(self.project_id, "subscriptions", name) for name in names))

    def datasets(self, _: Any = None) -> list[tuple[str, str]]:
        """Return the subscriptions, and the topic that the options name, as OpenLineage names datasets."""
        paths = self.subscriptions if self.topic is None else (*self.subscriptions, self.topic)
        return [dataset_of(path) for path in paths]

    def alone(self, subscription: str) -> Self:
        return dataclasses.replace(self, subscription_id=subscription)

    @property
    def seek(self) -> dict[str, int | str]:
        """The place to move the subscription to, as JSON values; empty when it stays."""
        place: dict[str, int | str | None] = {"timestamp": self.starting_timestamp, "dedup_epoch": self.dedup_epoch}
        if self.starting_snapshot is not None:
            place["snapshot"] = full_path(self.project, "snapshots", self.starting_snapshot)
        return {name: value for name, value in place.items() if value is not None}

    @property
    def topic(self) -> str | None:
        return None if self.topic_id is None else full_path(self.project, "topics", self.topic_id)

    @property
    def credentials(self) -> Credentials:
        if self.client_email is None or self.private_key is None:
            return client_credentials(self)
        return ServiceAccount(
            self.client_email, self.private_key.reveal(), self.client_id or "", self.private_key_id or ""
        )


def parse_read_options(
    raw: Mapping[str, str], environ: Mapping[str, str], *, streaming: bool | None = None
) -> PubSubReadOptions:
    """Parse and check the options of a reader; raise OptionError for what is unknown, missing or illegal.

    Where `streaming` is None, only what streams and batch reads have in common is checked.
    """
    names = {key.lower() for key in raw if raw.get(key) is not None}
    own = {key: value for key, value in raw.items() if key.lower() != DELETE_ON_STOP.lower()}
    options = parse_spool_options(PubSubReadOptions, own, environ, FORMAT, streaming=streaming)
    if streaming is False:
        check_batch(names)
    check_credentials(names)
    check_subscriptions(options.subscription_id, options.project_id)
    if DELETE_ON_STOP.lower() in names:
        raise deletion_refused(options.subscription)
    if options.starting_timestamp is not None and options.starting_snapshot is not None:
        why, action = "a subscription can be moved to one place only", "Leave one of them out."
        raise conflict(FORMAT, "startingTimestamp", "startingSnapshot", why, action)
    account_option = None if options.client_email is None else "clientEmail"
    options = dataclasses.replace(options, transport=connection_transport(options, environ, account_option))
    identity = f"{options.transport.target} {' '.join(options.subscriptions)}"
    return place_spool(options, own, environ, FORMAT, identity)
