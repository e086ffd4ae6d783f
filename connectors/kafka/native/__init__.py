"""The fast path: all that passes addresses to librdkafka and to Arrow, behind this one import.

`library` has librdkafka's public functions, `reader` and `writer` pass records between them and Arrow, and `check`
tries both in another process first.
"""

from connectors.kafka.native.check import native_reason as native_reason
from connectors.kafka.native.library import client_extension as client_extension
from connectors.kafka.native.reader import NativeSource as NativeSource
from connectors.kafka.native.writer import MOST_ROUNDS as MOST_ROUNDS
from connectors.kafka.native.writer import NativeSink as NativeSink
from connectors.kafka.native.writer import UnsentLog as UnsentLog
from connectors.kafka.native.writer import log_written_again as log_written_again
