"""Google Cloud Pub/Sub as a source of Spark streams.

Read the modules in this order: ``options``, ``client``, ``reader``, then what only they need.
"""
