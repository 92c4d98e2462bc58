"""Messages that a query was to read and that are not there: an error, or a warning and the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark_logd.errors import DataLoss

_log = logging.getLogger("logd.spark")

OnLoss = Callable[[str, int, int, str], None]  # topic, first offset, next offset, why


def fail(topic: str, first: int, next_: int, why: str) -> None:
    raise DataLoss(
        f"{_missing(topic, first, next_, why)};"
        " to go on without them, set the option failOnDataLoss to false"
    )


def warn(topic: str, first: int, next_: int, why: str) -> None:
    """Goes to the standard error of Spark's Python process."""
    _log.warning("%s; going on without them", _missing(topic, first, next_, why))


def on_loss(fails: bool) -> OnLoss:
    return fail if fails else warn


def _missing(topic: str, first: int, next_: int, why: str) -> str:
    return f"topic {topic} has lost the offsets {first} to {next_ - 1}: {why}"
