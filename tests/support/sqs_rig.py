"""Queues of SQS on moto's server, for the example that reads them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import boto3

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
VISIBILITY_SECONDS = 3
ACCOUNT = "123456789012"
"""Of moto, for every key."""


@contextmanager
def moto_server() -> Iterator[str]:
    """URL of moto's server, which takes one request after the other."""
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - takes a second that others need not wait
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server  # noqa: PLC0415

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of every call
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def _register_fifo_queue(name: str, attributes: Mapping[str, str]) -> None:
    """Put a FIFO queue into moto that keeps the rule of SQS, which its own does not when the leases of several end.

    A group gives nothing while any of its messages is in flight, and then the earliest first.
    """
    from moto.sqs.models import Message, Queue, sqs_backends  # noqa: PLC0415 - as above

    class FifoQueue(Queue):
        @property
        def messages(self) -> list[Message]:
            visible = super().messages
            self.pending_messages.difference_update(visible)
            leased = self.pending_message_groups
            return [message for message in visible if message.group_id not in leased]

    region = KEYS["AWS_DEFAULT_REGION"]
    queue = FifoQueue(name, region=region, account_id=ACCOUNT, **attributes)
    sqs_backends[ACCOUNT][region].queues[name] = queue


class TestQueue:
    """A queue of one test, and what was sent to it: texts that number the messages, and their ids."""

    __test__ = False

    def __init__(self, endpoint: str, name: str, groups: int = 0) -> None:
        place = {"region_name": KEYS["AWS_DEFAULT_REGION"], "endpoint_url": endpoint}
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        self._client: Any = boto3.Session().client("sqs", **place, **keys)
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if groups else {}
        if groups:
            _register_fifo_queue(name, attributes)
        self.url: str = self._client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self._endpoint, self._groups = endpoint, groups
        self.ids: list[str] = []

    def options(self, folder: Path, **changes: str) -> dict[str, str]:
        """The options of a query; it polls, because a call that waits would let moto serve nobody else."""
        return {
            "queueUrl": self.url,
            "endpointUrl": self._endpoint,
            "region": KEYS["AWS_DEFAULT_REGION"],
            "visibilityTimeout": f"{VISIBILITY_SECONDS}s",
            "waitTime": "0s",
            "spoolLocation": str(folder / "spool"),
            "maxFetchPeriod": "30ms",
            **changes,
        }

    def send(self, count: int) -> None:
        """Send messages, of a FIFO queue to its groups in turn."""
        first = len(self.ids)
        for start in range(first, first + count, 10):
            numbers = range(start, min(start + 10, first + count))
            entries = [{"Id": str(number), "MessageBody": str(number), **self._group(number)} for number in numbers]
            sent = self._client.send_message_batch(QueueUrl=self.url, Entries=entries)["Successful"]
            self.ids += [one["MessageId"] for one in sorted(sent, key=lambda one: int(one["Id"]))]

    def _group(self, number: int) -> Mapping[str, str]:
        return {"MessageGroupId": f"group-{number % self._groups}"} if self._groups else {}

    def receive(self, seconds: int) -> list[str]:
        """Receive the bodies of at most ten messages, which are not visible for so many seconds."""
        arguments = {"MaxNumberOfMessages": 10, "VisibilityTimeout": seconds, "WaitTimeSeconds": 0}
        response = self._client.receive_message(QueueUrl=self.url, **arguments)
        return [message["Body"] for message in response.get("Messages", [])]

    def left(self) -> int:
        """How many messages are not deleted."""
        names: Sequence[Any] = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)
