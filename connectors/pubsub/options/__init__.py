"""Options of the ``pubsub`` source and sink, and of their clients."""
