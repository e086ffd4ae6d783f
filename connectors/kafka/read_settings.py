"""What a task needs to read, and the consumer that is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from connectors.kafka.fast_path import native_reason
from connectors.kafka.fetched import RecordSource
from connectors.kafka.native import NativeSource
from connectors.kafka.plain import PlainSource
from connectors.kafka.settings import ClientSettings

__all__ = ["ReadSettings", "open_source"]

_DEFAULTS: Final = {
    # With its own defaults the client holds few records, and rests for a second whenever it holds enough.
    "fetch.queue.backoff.ms": "5",
    "queued.min.messages": "200000",
    # What is fetched beyond the end of a range is wasted if another worker reads the next one: no more than an Arrow
    # batch of it. Measured: as fast as with 64 MB, and of the rows of 1 KB of a stream a fifth faster.
    "queued.max.messages.kbytes": "16384",
    "fetch.message.max.bytes": "4194304",
    # A consumer that turns to another partition waits for the answer that is under way, as long as this. Measured for
    # ranges of 5 records in 50 partitions: 6.5 ms each instead of 12 with 10. Until it rests it asks for nothing 185
    # times a second then, instead of 92.
    "fetch.wait.max.ms": "5",
    # Between two batches a broker need not answer for each small record that comes: 0.26 of a processor instead of
    # 0.40, at 1,000 records a second, with 64 KB and 10 ms. With so little a small range waits 5 ms at most.
    "fetch.min.bytes": "1024",
    "fetch.error.backoff.ms": "20",
    "reconnect.backoff.max.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a task needs to read; pickles.

    Attributes:
        client: the settings of librdkafka.
        group: the consumer group, which is never joined.
        headers: with the column ``headers``.
        fail_on_data_loss: as the option.
        poll_timeout: seconds without any progress after which a task fails.
        native: as the option ``nativeReads``.
        run: names the run of the stream, or the action that reads a batch. What was fetched for one is not for another:
            the topic may have been made anew since.
    """

    client: ClientSettings
    group: str
    headers: bool
    fail_on_data_loss: bool
    poll_timeout: float
    native: bool
    run: str = field(default="", compare=False)


def own_defaults(given: Mapping[str, str]) -> dict[str, str]:
    """What a consumer gets where the user gives nothing, beside settings in the words of librdkafka."""
    own = {name: value for name, value in _DEFAULTS.items() if name not in given}
    if "reconnect.backoff.ms" in given:
        own.pop("reconnect.backoff.max.ms", None)  # the client refuses one that is below that
    if "fetch.wait.max.ms" in given:
        own.pop("fetch.min.bytes", None)  # else a small range waits as long as the user allows for no record at all
    return own


def open_source(settings: ReadSettings) -> RecordSource:
    """A consumer: the fast one where it can be had and can do what is asked, else the plain one."""
    given = dict(settings.client.plain)
    own = own_defaults(given) | {"group.id": settings.group, "enable.partition.eof": "true"}
    tokens = settings.client.token_provider is not None or given.get("sasl.mechanism", "").upper() == "OAUTHBEARER"
    if not settings.native or tokens or native_reason():
        return PlainSource(settings.client, own)
    fixed = {"enable.auto.commit": "false", "enable.auto.offset.store": "false", "auto.offset.reset": "error"}
    return NativeSource({**settings.client.revealed(), "log.connection.close": "false", **fixed, **own})
