"""Lag and health of queries, which Spark does not report for Python sources; and what keeps them running.

    from connectors.observe import supervise, watch

    observer = watch(spark, spools=["/data/spool/orders"], file="/var/log/orders.jsonl", port=9464)
    supervise(lambda: events.writeStream.option("checkpointLocation", "...").toTable("orders"))

`watch` goes on until the `Observer` that it gives is closed.
"""

from connectors.observe.listener import Observer, watch
from connectors.observe.supervise import supervise

__all__ = ["Observer", "supervise", "watch"]
