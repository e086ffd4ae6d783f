"""Lag and health of queries, which Spark does not report for Python sources.

from connectors.observe import watch

observer = watch(spark, spools=["/data/spool/orders"], file="/var/log/orders.jsonl", port=9464)
"""

from connectors.observe.listener import Observer, watch

__all__ = ["Observer", "watch"]
