"""Amazon Kinesis Data Streams: the ``kinesis`` source and sink.

Read in this order: `options`, `client`, `reader`, `writer`.
"""
