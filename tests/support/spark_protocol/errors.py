"""Every error that the protocol driver raises.

    ProtocolError                    the base
    ├── QueryEndedError              the query does not run
    ├── ReaderFailedError            a call of the reader raised
    ├── ReaderDiedError              the reader process ended during a call
    ├── ReaderTimeoutError           a call of the reader did not come back
    ├── TaskFailedError              making, planning or reading a source in a worker raised
    ├── NoBatchError                 no batch came in the time given
    ├── UnexpectedBatchError         a batch came although there was nothing new
    ├── AttemptsDifferError          two reads of one partition gave different rows
    ├── ReplayDiffersError           a batch was run again and gave other rows, another order or other partitions
    └── DriverCrashedError           the driver was told to crash here

They are for tests, so none is transient and none has a code; errors of a source arrive as text, as in Spark.
"""

from __future__ import annotations

__all__ = [
    "AttemptsDifferError",
    "DriverCrashedError",
    "NoBatchError",
    "ProtocolError",
    "QueryEndedError",
    "ReaderDiedError",
    "ReaderFailedError",
    "ReaderTimeoutError",
    "ReplayDiffersError",
    "TaskFailedError",
    "UnexpectedBatchError",
]


class ProtocolError(Exception):
    """The base of all errors of the protocol driver."""


class ReaderFailedError(ProtocolError):
    """Raised when a call of the reader raised; the text is the traceback that Spark would show."""


class ReaderDiedError(ProtocolError):
    """Raised when the reader process ended during a call; Spark says "Connection reset" then."""


class ReaderTimeoutError(ProtocolError):
    """Raised when a call of the reader took longer than ``call_timeout``; Spark would wait for ever."""


class TaskFailedError(ProtocolError):
    """Raised when making, planning or reading a source raised in a worker; the text is the worker's traceback."""


class QueryEndedError(ProtocolError):
    """Raised when a trigger is asked of a query that was stopped, has failed, or has come to its end."""


class NoBatchError(ProtocolError):
    """Raised when no batch, or no batch that was waited for, came in the time given."""


class UnexpectedBatchError(ProtocolError):
    """Raised when a batch was built while the query was expected to be idle."""


class AttemptsDifferError(ProtocolError):
    """Raised when a partition was read twice and the rows differ."""


class ReplayDiffersError(ProtocolError):
    """Raised when a batch that ran before gives other rows, another order, or other partitions."""


class DriverCrashedError(ProtocolError):
    """Raised by the driver itself at the step where it was told to crash; the checkpoint is left as it is."""
