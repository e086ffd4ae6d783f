"""A queue in memory as a Spark source: it delivers a message until it is acknowledged, and each gives one row."""

import threading
import time

import numpy as np
import pyarrow as pa

from connectors import spool

ROWS = spool.RowSchema(1, pa.schema({"id": pa.string(), "body": pa.string()}))
queue = {f"id-{n}": f"message {n}" for n in range(1000)}


class QueueFetch(spool.FetchTarget):
    def __init__(self, settings, context):
        self.stopping = threading.Event()

    def start(self, intake):
        self.stopping.clear()
        self.thread = threading.Thread(target=self.receive, args=(intake,), daemon=True)
        self.thread.start()

    def receive(self, intake):
        while not self.stopping.wait(0.1):
            if intake.wait(0.1, self.stopping.is_set) and (messages := list(queue.items())[:100]):
                intake.put(messages, 1000 * len(messages), len(messages))

    def stop(self):
        self.stopping.set()
        self.thread.join()  # nothing is put once this returns

    def decode(self, deliveries):
        messages, now = [message for delivery in deliveries for message in delivery], time.time_ns() // 1000
        ids, bodies = ([message[at] for message in messages] for at in (0, 1))
        rows = pa.record_batch([pa.array(ids, pa.string()), pa.array(bodies, pa.string())], schema=ROWS.stamped)
        return spool.Block(rows, rows["id"], np.array([len(body) for body in bodies], np.int64), (now, now), ids)

    def on_durable(self, token):
        for message_id in token:
            queue.pop(message_id, None)  # acknowledges it

    def status(self):
        return spool.TargetStatus(streams=1, streams_open=1, error=None)


class QueueConnector(spool.SpoolConnector):
    format, options, rows, target = "queue", spool.SpoolOptions, ROWS, "queue_source:QueueFetch"

    def sources(self, options):
        return ("the queue",)

    def feeds(self, options, start):
        return [spool.Feed({}, horizon=3600)]


class QueueDataSource(spool.SpoolDataSource):
    connector = QueueConnector()
