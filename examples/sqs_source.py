"""Amazon SQS as a source of Spark, exactly once: a source of your own on the spool.

    pip install '.[spark,spool]' boto3    # in a clone
    spark.readStream.format("sqs").option("queueUrl", ...).option("spoolLocation", ...).load()

A message is deleted when it is durable in the spool, and its visibility timeout is extended until then. One that is
delivered again has the same id, and gives no second row. A FIFO queue keeps the order of each message group.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from connectors import spool
from connectors.core import errors

Messages = list[dict[str, Any]]  # of one response: a delivery; the receipt handles of a block's messages are its token
MOST = 10  # messages of a call
PERMANENT = {"NonExistentQueue": errors.SourceGoneError, "AccessDenied": errors.AccessDeniedError}
TEXT, TIME = pa.string(), pa.timestamp("us", "UTC")
ROWS = spool.RowSchema(1, pa.schema({"messageId": TEXT, "body": TEXT, "messageGroupId": TEXT, "sentTimestamp": TIME}))


@dataclass(frozen=True, kw_only=True)
class SqsOptions(spool.SpoolOptions):
    """The options of a queue, besides those of every spool. Credentials come from the environment."""

    queue_url: str = spool.option("queueUrl", spool.STRING, "URL of the queue.")
    region: str | None = spool.option("region", spool.STRING, "Its region, else AWS_REGION.", default=None)
    endpoint_url: str | None = spool.option("endpointUrl", spool.STRING, "The service, if not AWS.", default=None)
    visibility: float = spool.option("visibilityTimeout", spool.DURATION, "Of what a crash leaves.", default="30s")
    wait_time: float = spool.option("waitTime", spool.DURATION, "How long a call waits for messages.", default="5s")


@cache
def client(region: str | None, endpoint: str | None) -> Any:
    import boto3  # noqa: PLC0415 - tasks need none

    return boto3.Session().client("sqs", region_name=region, endpoint_url=endpoint)


def call(queue: Sequence[Any], method: str, **arguments: Any) -> dict[str, Any]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as above

    try:
        return dict(getattr(client(*queue[1:]), method)(QueueUrl=queue[0], **arguments))
    except (BotoCoreError, ClientError) as error:
        kind = next((kind for text, kind in PERMANENT.items() if text in str(error)), errors.ServiceUnavailableError)
        raise kind("SQS_CALL_FAILED", str(error), queue[0], "Check the queue, and who may read it.") from None


class SqsFetch(spool.FetchTarget[Messages, list[str]]):
    """Receives messages, extends leases and deletes, in its own process. One thread keeps the order of a FIFO queue."""

    def __init__(self, settings: Mapping[str, Any], context: spool.FetchContext) -> None:
        self._queue, self._receiving, self._context = settings["queue"], settings["receiving"], context
        self._lock, self._changing = threading.Lock(), threading.Lock()
        self._stopping, self._closed = threading.Event(), threading.Event()
        self._held, self._is_open, self._error = set[str](), False, None
        threading.Thread(target=self._extend, daemon=True).start()

    def start(self, intake: spool.Intake[Messages, list[str]]) -> None:
        self._stopping = threading.Event()
        threading.Thread(target=self._receive, args=(intake, self._stopping), daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()

    def decode(self, deliveries: Sequence[Messages]) -> spool.Block[list[str]]:
        messages = list(chain(*deliveries))
        ids, bodies, handles = ([one[key] for one in messages] for key in ("MessageId", "Body", "ReceiptHandle"))
        groups = [one["Attributes"].get("MessageGroupId") for one in messages]
        sent = [int(one["Attributes"]["SentTimestamp"]) * 1000 for one in messages]
        columns = map(pa.array, (ids, bodies, groups, sent), ROWS.columns.types)
        rows = pa.record_batch(list(columns), schema=ROWS.stamped)
        sizes = np.array([len(body.encode()) for body in bodies], np.int64)
        return spool.Block(rows, rows.column("messageId"), sizes, (min(sent), max(sent)), handles)

    def on_durable(self, token: list[str]) -> None:
        self._held.difference_update(token)
        self._change("delete_message_batch", token)

    def on_given_up(self, held: Sequence[Messages | list[str]]) -> None:
        handles = [one if isinstance(one, str) else one["ReceiptHandle"] for one in chain(*held)]
        self._held.difference_update(handles)
        self._change("change_message_visibility_batch", handles, VisibilityTimeout=0)

    def status(self) -> spool.TargetStatus:
        return spool.TargetStatus(streams=1, streams_open=int(self._is_open), error=self._error)

    def close(self, deadline: float) -> None:  # noqa: ARG002 - no call is under way
        self._closed.set()

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        try:
            self._error, response = None, call(self._queue, method, **arguments)
        except errors.ConnectorError as error:
            self._error, response = error, {}
            if not error.transient:
                self._context.fail(error)
        return response

    def _change(self, method: str, handles: Collection[str], **values: Any) -> None:
        with self._changing:  # what is released meanwhile is not extended after it
            entries = [{"Id": str(at), "ReceiptHandle": one, **values} for at, one in enumerate(tuple(handles))]
            for first in range(0, len(entries), MOST):  # one that fails comes again, and gives no second row
                self._call(method, Entries=entries[first : first + MOST])

    def _receive(self, intake: spool.Intake[Messages, list[str]], stopping: threading.Event) -> None:
        while not stopping.wait(0.0 if self._held else 0.1):
            if intake.wait(1.0, stopping.is_set):
                response = self._call("receive_message", **self._receiving)
                self._is_open, messages = bool(response), response.get("Messages", [])
                with self._lock:  # what comes after a stop is not put, and becomes visible again by itself
                    if messages and not stopping.is_set():
                        self._held.update(one["ReceiptHandle"] for one in messages)
                        intake.put(messages, sum(4 * len(one["Body"]) for one in messages), len(messages))

    def _extend(self) -> None:
        seconds = self._receiving["VisibilityTimeout"]
        while not self._closed.wait(seconds / 3):
            self._change("change_message_visibility_batch", self._held, VisibilityTimeout=seconds)


class SqsConnector(spool.SpoolConnector[SqsOptions]):
    format, options, rows, target = "sqs", SqsOptions, ROWS, "sqs_source:SqsFetch"

    def sources(self, options: SqsOptions) -> tuple[str, ...]:
        return (options.queue_url,)

    def feeds(self, options: SqsOptions, start: spool.SpoolStart | None) -> list[spool.Feed]:  # noqa: ARG002
        queue = (options.queue_url, options.region, options.endpoint_url)
        found = call(queue, "get_queue_attributes", AttributeNames=["All"])["Attributes"]
        times = {"VisibilityTimeout": max(int(options.visibility), 1), "WaitTimeSeconds": int(options.wait_time)}
        receiving = {"AttributeNames": ["All"], "MaxNumberOfMessages": MOST, **times}
        is_ordered, horizon = found.get("FifoQueue") == "true", float(found["MessageRetentionPeriod"])
        return [spool.Feed({"queue": queue, "receiving": receiving}, horizon, is_ordered)]


class SqsDataSource(spool.SpoolDataSource):
    connector = SqsConnector()
