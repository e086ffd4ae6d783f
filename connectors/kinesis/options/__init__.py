"""Options of the ``kinesis`` source and sink, and of their clients."""
