"""Lag and health of queries, which Spark does not report for Python sources, and restarts of failed queries.

    from connectors.observe import supervise, watch

    observer = watch(spark, spools=["/data/spool/orders"], file="/var/log/orders.jsonl", port=9464)
    supervise(lambda: writer.option("checkpointLocation", "...").start())  # writer: events.writeStream.format(...)

`watch` returns an `Observer`, and continues until you close it.
"""

from connectors.observe.failure import summarize_failure
from connectors.observe.supervise import supervise
from connectors.observe.watch import Observer, watch

__all__ = ["Observer", "summarize_failure", "supervise", "watch"]
