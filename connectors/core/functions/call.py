"""What a call of a function of columns is, for those who run it."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import pyarrow as pa


class Call(Protocol):
    """One call of a function of columns; hashable, and small enough to travel with each task.

    Attributes:
        function: the name of the function, which is that of the column.
        encodes: whether it makes messages of values, not values of messages.
    """

    function: ClassVar[str]
    encodes: ClassVar[bool]

    def __call__(self, *columns: Any, **others: Any) -> pa.Array:
        """Convert a column; a decoder may take Kafka's headers too, and a column of types."""
        ...
