"""What goes wrong in Spark's Python processes, as one line that says what to do.

Spark puts what a Python process raises into an exception of its own, with both tracebacks around
it. `one_line` asks Spark to leave the Python one out; `explain` and `error_code` find the line in
what the driver gets: `logd error <code>: <sentence>`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from logd.errors import BadRequest, LogdError
from logd.wire.addresses import ConnectionLost

P = ParamSpec("P")
T = TypeVar("T")

_LINE = re.compile(
    r"^(?:.*: )?pyspark_logd\.errors\.\w+: (?:logd error (?P<code>[a-z-]+): )?(?P<text>.+)$",
    re.MULTILINE,
)


class BadOption(BadRequest):
    """An option, a column or a schema that cannot be used."""


class DataLoss(LogdError):
    """Messages that a query needs are not there any more. The text names topic and offsets."""

    code = "data-loss"


class LogdFailed(Exception):
    """Why Spark cannot go on: the text is the whole explanation. The code is the protocol's,
    `data-loss`, `no-connection`, or none where logd has no part in it."""

    def __init__(self, text: str, code: str | None = None) -> None:
        super().__init__(text, code)
        self.text, self.code = text, code

    def __str__(self) -> str:
        return self.text if self.code is None else f"logd error {self.code}: {self.text}"


@contextmanager
def hidden_traceback() -> Iterator[None]:
    """Within it, what logd refuses and what the network does become a `LogdFailed`.

    The variable is Spark's own switch. Its Python process ends with the exception, so it hides
    nothing else.
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


def one_line(function: Callable[P, T]) -> Callable[P, T]:
    """For what Spark calls: errors that a person can act on come without a traceback."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with hidden_traceback():
            return function(*args, **kwargs)

    return wrapped


def explain(error: BaseException) -> str | None:
    """logd's sentence in an exception that Spark raised; None where it is not about logd."""
    found = _LINE.search(str(error))
    return found["text"].strip() if found else None


def error_code(error: BaseException) -> str | None:
    """The code of the same line: `not-found`, `busy`, ...; None where there is none."""
    if isinstance(error, LogdFailed):
        return error.code
    found = _LINE.search(str(error))
    return found["code"] if found else None
