"""Decoding by ptars, with a guard for each thing that it does in another way than Spark.

A message that ptars cannot read is found by halves, and left to upb, which says why. What it passes over in silence
shows in the bytes that are left (`columns`): such messages are checked by upb. A row that only upb can decode (a oneof
with two members, an unknown value of a closed enum, a missing required field, a time that does not fit) is left to it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor

from connectors.core.functions.bad_rows import Decoded
from connectors.core.functions.columns import bitmap, offsets, struct_array, validity_of
from connectors.protobuf.ptars.columns import doubtful, message_part
from connectors.protobuf.ptars.declarations import ptars_handler
from connectors.protobuf.schema.plan import FieldPlan, MessagePlan, ValueKind
from connectors.protobuf.upb.decoder import UpbDecoder

_log = logging.getLogger(__name__)

_LARGEST_NUMBER: Final = 1 << 16  # ptars holds 16 bytes for each number up to the largest, in each message type
_MOST_MESSAGES: Final = 2000
_SEARCHES: Final = 3
_SPLICED: Final = 64
_MOST_GROUPS: Final = 10_000  # ptars goes down a level for each, on the stack; upb stops at 100
_START_GROUP: Final = 3


class PtarsError(Exception):
    """Raised for whatever ptars raises, including panics, and for what must not reach it."""


def guarded(call: Any, argument: Any) -> Any:
    """Call ptars; raise PtarsError where it raises or panics."""
    try:
        return call(argument)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except Exception as error:
        raise PtarsError(str(error)) from error
    except BaseException as error:  # a panic in Rust is no Exception
        _warn_of_panic(str(error))
        raise PtarsError(f"panic: {error}") from error


@lru_cache(maxsize=64)
def _warn_of_panic(text: str) -> None:
    _log.warning("ptars panicked (%s): it decodes parts of the batch, and protobuf reads the rest", text)


def unsupported(plan: MessagePlan) -> str:
    """Return why ptars cannot decode by a plan; empty where it can."""
    if not plan.fields:
        return "the message has no fields"
    count = 0
    pending: list[Sequence[FieldPlan]] = [(*plan.fields, *plan.dropped)]
    while pending:
        count += 1
        fields = pending.pop()
        for field in fields:
            if field.proto_type == FieldDescriptor.TYPE_GROUP:
                return f"{field.name} is a group"
            if field.kind is ValueKind.ANY_JSON:
                return f"{field.name} is an Any as JSON"
            if field.kind is ValueKind.EMPTY:
                return f"{field.name} is empty"
            if field.number > _LARGEST_NUMBER:
                return f"{field.name} has the number {field.number}, for which ptars would take much memory"
            if field.children:
                pending.append((*field.children, *field.dropped))
    return "" if count <= _MOST_MESSAGES else f"it has {count} nested messages"


class PtarsDecoder:
    """Decodes by ptars, and by upb where ptars cannot; with `upcast`, uint32 and uint64 are upcast.

    `unsupported` must be empty for the plan. Raises PtarsError if ptars cannot take the declarations.
    """

    def __init__(self, plan: MessagePlan, upb: UpbDecoder, *, upcast: bool) -> None:
        self._plan = plan
        self._type = plan.arrow_type
        self._upb = upb
        handler_of = partial(ptars_handler, upcast=upcast)
        self._read = guarded(handler_of, (*plan.fields, *plan.dropped)).array_to_record_batch
        self._skim = guarded(handler_of, ()).array_to_record_batch

    def decode(self, messages: pa.Array) -> Decoded:
        if len(messages) == 0 or messages.null_count == len(messages):
            return self._upb.decode(messages)
        if messages.offset:
            messages = pa.concat_arrays([messages])
            if messages.offset:
                messages = messages.take(pa.array(np.arange(len(messages))))
        batch, unread = self._read_all(messages)
        if batch is None:
            return self._upb.decode(messages)
        part = message_part(self._plan, batch.columns, self._type, len(messages))
        valid = validity_of(messages)
        lengths = np.diff(offsets(messages)) * valid
        unread |= valid & self._rejected(messages, doubtful(part, lengths) & valid & ~unread)
        if part.wrong is not None:
            unread |= part.wrong & valid
        columns = [part.array.field(index) for index in range(self._type.num_fields)]
        values = struct_array(self._type, columns, len(messages), bitmap(valid))
        rows = np.flatnonzero(unread)
        return Decoded(values, {}) if len(rows) == 0 else self._patched(values, messages, rows)

    def _rejected(self, messages: pa.Array, doubts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        rejected = np.zeros(len(messages), dtype=np.bool_)
        rows = np.flatnonzero(doubts)
        if len(rows):
            check = partial(self._upb.check, groups=not self._plan.complete)  # ptars checks those that it reads
            doubtful_messages = messages.take(pa.array(rows)) if len(rows) < len(messages) else messages
            rejected[rows] = [not check(data) for data in doubtful_messages.to_pylist()]
        return rejected

    def _read_all(self, messages: pa.Array) -> tuple[pa.RecordBatch | None, np.ndarray[Any, Any]]:
        """Return what ptars reads, and the rows that it cannot read, which are empty messages there."""
        unread = self._too_deep(messages)
        rest = _without(messages, unread)
        for _ in range(_SEARCHES):
            try:
                return guarded(self._read, rest), unread
            except PtarsError:
                bad = _first_bad(self._skim, rest)  # most damage shows at the root, where a look costs a tenth
                bad = bad if bad < len(messages) else _first_bad(self._read, rest)
            if bad == len(messages):
                break  # it fails for none alone
            unread[bad] = True
            rest = _without(messages, unread)
        check = self._upb.check
        unread |= np.array([data is not None and not check(data) for data in messages.to_pylist()])
        try:
            return guarded(self._read, _without(messages, unread)), unread
        except PtarsError:
            return None, unread

    def _too_deep(self, messages: pa.Array) -> np.ndarray[Any, Any]:
        """Return those with enough nested groups to overflow ptars' stack, and that upb refuses."""
        too_deep = np.zeros(len(messages), dtype=np.bool_)
        bounds = offsets(messages)
        for row in np.flatnonzero(np.diff(bounds) > _MOST_GROUPS).tolist():
            data = np.frombuffer(messages.buffers()[2], np.uint8)[bounds[row] : bounds[row + 1]]
            if np.count_nonzero(data & 7 == _START_GROUP) > _MOST_GROUPS:
                too_deep[row] = messages[row].is_valid and not self._upb.check(data.tobytes())
        return too_deep

    def _patched(self, values: pa.StructArray, messages: pa.Array, rows: np.ndarray[Any, Any]) -> Decoded:
        by_upb = self._upb.decode(messages.take(pa.array(rows)))
        errors = {int(rows[index]): reason for index, reason in by_upb.errors.items()}
        if len(rows) <= _SPLICED:
            pieces = []
            start = 0
            for index, row in enumerate(rows.tolist()):
                pieces += [values.slice(start, row - start), by_upb.values.slice(index, 1)]
                start = row + 1
            return Decoded(pa.concat_arrays([*pieces, values.slice(start)]), errors)
        places = np.arange(len(values))
        places[rows] = len(values) + np.arange(len(rows))
        return Decoded(pa.concat_arrays([values, by_upb.values]).take(pa.array(places)), errors)


def _first_bad(read: Any, messages: pa.Array) -> int:
    """Return the first message for which `read` raises, found by halves; the length if there is none."""
    start, end = 0, len(messages)
    while start < end:
        middle = (start + end + 1) // 2
        try:
            guarded(read, messages.slice(start, middle - start))
            start = middle
        except PtarsError:
            if middle == start + 1:
                return start
            end = middle
    return len(messages) if end == len(messages) else start


def _without(messages: pa.Array, unread: np.ndarray[Any, Any]) -> pa.Array:
    # ptars reads NULL as an empty message.
    return pc.if_else(pa.array(unread), pa.scalar(None, pa.binary()), messages) if unread.any() else messages
