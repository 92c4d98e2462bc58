"""Log records as JSON, and the context that is added to them.

Invariant: every record becomes one line of valid JSON of at most `max_bytes`. Only a message that
cannot be formatted (`"%d" % "x"`) raises, as in every formatter of `logging`. Values that JSON
cannot express become text. No I/O.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

MAX_BYTES = 64 * 1024
LEAST_BYTES = 1024
OPTIONAL = {
    "pid": "process", "process": "processName", "thread": "threadName",
    "file": "pathname", "line": "lineno", "function": "funcName",
}  # fmt: skip

_OWN = frozenset(
    ("time", "level", "logger", "message", *OPTIONAL, "exception", "traceback", "stack")
)
_CONTEXT = "logd_context"  # an attribute that a ContextFilter sets
_STANDARD = frozenset(
    (*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", _CONTEXT)
)
_SHORTEST = 32  # characters of a value that was cut
_UTF8_AT_MOST = 6  # bytes per character: a lone surrogate becomes \udc80
_context: ContextVar[Mapping[str, Any] | None] = ContextVar("logd_context", default=None)


# -- context ------------------------------------------------------------------------------------


@contextlib.contextmanager
def log_context(**fields: Any) -> Iterator[None]:
    """Add fields to every record in this block, of this thread or task; blocks may be nested."""
    token = _context.set({**(_context.get() or {}), **fields})
    try:
        yield
    finally:
        # A generator may be closed in another context, which never had the fields.
        with contextlib.suppress(ValueError):
            _context.reset(token)


class ContextFilter(logging.Filter):
    """For a QueueHandler: stores the context in the record."""

    def filter(self, record: logging.LogRecord) -> bool:
        setattr(record, _CONTEXT, _context.get())
        return True


# -- records ------------------------------------------------------------------------------------


class JsonFormatter(logging.Formatter):
    """One line of JSON: time, level, logger, message, what `include` names, fields, exception.

    Of fields with the same name, `extra` wins over `log_context`, and that over the formatter's
    `fields`. A field with the name of one of the record's own gets a `_` after its name, or more.
    """

    def __init__(
        self,
        fields: Mapping[str, Any] | None = None,
        include: Collection[str] = (),
        max_bytes: int = MAX_BYTES,
    ) -> None:
        super().__init__()
        if unknown := sorted(set(include) - OPTIONAL.keys()):
            raise ValueError(f"{unknown[0]!r} cannot be included; known are: {', '.join(OPTIONAL)}")
        if max_bytes < LEAST_BYTES:
            raise ValueError(f"max_bytes must be at least {LEAST_BYTES}")
        self._fields = dict(fields or {})
        self._include = [(name, OPTIONAL[name]) for name in OPTIONAL if name in include]
        self._max_bytes = max_bytes
        self._second = (0, "1970-01-01T00:00:00")  # the last one that was formatted

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, attribute in self._include:
            values[name] = getattr(record, attribute)
        if fields := self._fields_of(record):
            _add(values, fields)
        if record.exc_info or record.exc_text or record.stack_info:
            self._add_traces(values, record)
        return fitted(values, self._max_bytes)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second, thousandth = divmod(int(record.created * 1000), 1000)
        at, text = self._second
        if at != second:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second, text
        return f"{text}.{thousandth:03d}Z"

    def _fields_of(self, record: logging.LogRecord) -> dict[str, Any]:
        attributes = record.__dict__
        context = attributes[_CONTEXT] if _CONTEXT in attributes else _context.get()
        fields = {**self._fields, **(context or {})}
        if not attributes.keys() <= _STANDARD:
            fields.update(item for item in attributes.items() if item[0] not in _STANDARD)
        return fields

    def _add_traces(self, values: dict[str, Any], record: logging.LogRecord) -> None:
        info = record.exc_info
        if info and info[0] is not None:
            values["exception"] = f"{info[0].__name__}: {text_of(info[1])}"
            if not record.exc_text or record.exc_text.isspace():  # loguru sets it to a line end
                record.exc_text = self.formatException(info)  # for the other handlers
        if record.exc_text:
            values["traceback"] = record.exc_text
        if record.stack_info:
            values["stack"] = self.formatStack(record.stack_info)


def _add(values: dict[str, Any], fields: Mapping[str, Any]) -> None:
    for key, value in fields.items():
        name = key if isinstance(key, str) else text_of(key)
        while name in _OWN or (name is not key and name in fields):
            name += "_"
        values[name] = value


# -- JSON ---------------------------------------------------------------------------------------


def text_of(value: object) -> str:
    """Its `str()`, even if that raises; bytes are decoded."""
    try:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).decode("utf-8", "backslashreplace")
        return str(value)
    except Exception as error:  # noqa: BLE001  it is the code of others
        return f"<{type(value).__name__} whose str() fails: {type(error).__name__}>"


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=text_of
).encode


def to_json(values: Mapping[str, Any]) -> str:
    try:
        return _encode(values)
    except Exception:  # noqa: BLE001  see _plain
        return _encode({name: _plain(value) for name, value in values.items()})


def _plain(value: object) -> object:
    """A value that JSON cannot express (NaN, a cycle, keys that are not text) as its `str()`."""
    try:
        _encode(value)
    except Exception:  # noqa: BLE001  any error
        return text_of(value)
    return value


def to_bytes(text: str) -> bytes:
    """UTF-8; lone surrogates as `\\udc80`, as in JSON."""
    return text.encode("utf-8", "backslashreplace")


def fitted(values: Mapping[str, Any], max_bytes: int) -> str:
    """As JSON; long values are cut if it is too long."""
    text, room = to_json(values), max_bytes // 2
    while len(text) * _UTF8_AT_MOST > max_bytes and len(to_bytes(text)) > max_bytes:
        if room < _SHORTEST:
            first = {name: _cut(values[name], _SHORTEST) for name in list(values)[:4]}
            return to_json(first | {"left_out": len(values) - len(first)})
        text = to_json({_cut(name, room): _cut(value, room) for name, value in values.items()})
        room //= 2
    return text


def _cut(value: Any, room: int) -> Any:
    text = value if isinstance(value, str) else to_json({"": value})[4:-1]
    return value if len(text) <= room else cut_text(text, room)


def cut_text(text: str, room: int) -> str:
    return f"{text[:room]}… [cut: {len(text)} characters]"
