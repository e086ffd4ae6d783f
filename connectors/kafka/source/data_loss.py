"""Rows that are gone, in the words of Spark's own source; what becomes of that is for ``failOnDataLoss`` to say."""

from __future__ import annotations

import logging
from typing import Final

from connectors.core.errors import DataLossError

__all__ = ["report_loss"]

_log = logging.getLogger(__name__)
_WAY_ON: Final = "If you do not want your query to fail on such cases, set the source option failOnDataLoss to false."
_WHY: Final = (
    "Some data may have been lost because they are not available in Kafka any more; either the data was aged out by "
    "Kafka or the topic may have been deleted before all the data in the topic was processed"
)


def report_loss(kind: str, reason: str, where: str, *, fail: bool) -> None:
    """Fail the query over rows that are gone, or warn and go on.

    Args:
        kind: the kind of loss, as Spark names it; the code of the error is ``KAFKA_DATA_LOSS.KIND``.
        reason: what was seen.
        where: topic, partition, offsets.
        fail: the option ``failOnDataLoss``.

    Raises:
        DataLossError: ``fail`` is set.
    """
    code = f"KAFKA_DATA_LOSS.{kind}"
    if fail:
        raise DataLossError(code, f"{_WHY}. Reason: {reason}", where, _WAY_ON)
    _log.warning("[%s] %s. Reason: %s (%s)", code, _WHY, reason, where)
