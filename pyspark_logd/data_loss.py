"""Missing messages: depending on failOnDataLoss, the query fails or logs a warning."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from pyspark_logd.errors import DataLoss

_log = logging.getLogger("logd.spark")

OnLoss = Callable[[str, int, int, str], None]  # topic, first offset, next offset, reason

LOST_ON_DISK = "the daemon lost them on its disk"  # a gap, which stays
DATA_LOSS = re.compile(r"topic (\S+) has lost offsets ([0-9]+) to ([0-9]+): (.*)")


def fail(topic: str, first: int, next_: int, reason: str) -> None:
    raise DataLoss(
        f"{_describe(topic, first, next_, reason)};"
        " to skip them, set the option failOnDataLoss to false"
    )


def warn(topic: str, first: int, next_: int, reason: str) -> None:
    """Logs to the standard error of the Spark Python process."""
    _log.warning("%s; skipping them", _describe(topic, first, next_, reason))


def on_loss(fails: bool) -> OnLoss:
    return fail if fails else warn


def _describe(topic: str, first: int, next_: int, reason: str) -> str:
    return f"topic {topic} has lost offsets {first} to {next_ - 1}: {reason}"
