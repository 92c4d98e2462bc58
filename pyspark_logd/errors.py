"""Errors in the Python processes of Spark, reported as one line.

Spark wraps an exception of a Python process in one of its own, with both tracebacks.
`one_line_errors` makes Spark omit the Python traceback. `explain` and `error_code` extract the line
`logd error <code>: <sentence>` from the exception that the driver gets. If messages are missing,
the query fails or logs a warning, depending on failOnDataLoss.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from logd.errors import BadRequest, LogdError
from logd.wire.addresses import ConnectionLost

OnLoss = Callable[[str, int, int, str], None]  # topic, first offset, next offset, reason

LOST_ON_DISK = "the daemon lost them on its disk"  # a gap, which stays
DATA_LOSS = re.compile(r"topic (\S+) has lost offsets ([0-9]+) to ([0-9]+): (.*)")
_log = logging.getLogger("logd.spark")
_LINE = re.compile(
    r"^(?:.*: )?pyspark_logd\.errors\.\w+: (?:logd error (?P<code>[a-z-]+): )?(?P<text>.+)$",
    re.MULTILINE,
)


class BadOption(BadRequest):
    """An option, a column or a schema is invalid."""


class DataLoss(LogdError):
    """Messages that a query needs are missing. The text names the topic and the offsets."""

    code = "data-loss"


class LogdFailed(Exception):
    """The reason of a failed query. The code is an error code of the protocol, `data-loss`,
    `no-connection` or `io`, or None if the cause is outside of logd."""

    def __init__(self, text: str, code: str | None = None) -> None:
        super().__init__(text, code)
        self.text, self.code = text, code

    def __str__(self) -> str:
        return self.text if self.code is None else f"logd error {self.code}: {self.text}"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Convert errors of logd and of the network to `LogdFailed`, in a block or as a decorator.

    The environment variable is Spark's switch. The Python process ends with this exception, so the
    variable does not hide the traceback of any other.
    """
    try:
        yield
    except (LogdError, OSError) as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        text = error.text if isinstance(error, LogdError) else str(error)
        raise LogdFailed(" ".join(text.split()), _code(error)) from None


def _code(error: LogdError | OSError) -> str:
    if isinstance(error, LogdError):
        return error.code
    return "no-connection" if isinstance(error, ConnectionLost) else "io"


def explain(error: BaseException) -> str | None:
    """The message of logd in an exception that Spark raised; None if there is none."""
    found = _LINE.search(str(error))
    return found["text"].strip() if found else None


def error_code(error: BaseException) -> str | None:
    """The error code in such an exception: `not-found`, `busy`, ...; None if there is none."""
    if isinstance(error, LogdFailed):
        return error.code
    found = _LINE.search(str(error))
    return found["code"] if found else None


# -- data loss ------------------------------------------------------------------------------------


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
