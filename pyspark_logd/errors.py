"""What goes wrong in Spark's Python processes, as one line that says what to do.

Spark puts what a Python process raises into an exception of its own, with both tracebacks around
it. `one_line` asks Spark to leave the Python one out; `explain` finds the line again in what the
driver gets.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from logd.errors import BadRequest, LogdError

P = ParamSpec("P")
T = TypeVar("T")

_LINE = re.compile(r"^(?:.*: )?pyspark_logd\.errors\.(?:\w+): (?P<text>.+)$", re.MULTILINE)


class BadOption(BadRequest):
    """An option, a column or a schema that cannot be used."""


class DataLoss(LogdError):
    """Messages that a query needs are not there any more. The text names topic and offsets."""

    code = "data-loss"


class LogdFailed(Exception):
    """Any other reason why Spark cannot go on: the text is the whole explanation."""


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
        raise LogdFailed(" ".join(text.split())) from None


def one_line(function: Callable[P, T]) -> Callable[P, T]:
    """For what Spark calls: errors that a person can act on come without a traceback."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with hidden_traceback():
            return function(*args, **kwargs)

    return wrapped


def explain(error: BaseException) -> str | None:
    """The line of logd's in an exception that Spark raised; None where it is not about logd."""
    found = _LINE.search(str(error))
    return found["text"].strip() if found else None
