"""How the daemon's own log looks: text for a terminal, JSON for programs, or journald's levels.

Always: a record is one line, a traceback aside, and what clients sent cannot put control
characters, line ends or a change of writing direction into it. Imports nothing of logd.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

_LEVELS = {"CRITICAL": 2, "ERROR": 3, "WARNING": 4, "INFO": 6, "DEBUG": 7}  # as syslog counts them
_HIDDEN = (
    *range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)  # fmt: skip
_ESCAPED = {code: ascii(chr(code))[1:-1] for code in _HIDDEN}


def set_up(form: str, level: str, environ: Mapping[str, str], stream: TextIO = sys.stderr) -> str:
    """Send every record to `stream`. Returns the form that was chosen."""
    if form == "auto":
        form = choose(environ, stream)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_FORMATTERS[form]())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)
    return form


def set_level(level: str) -> None:
    """Leave out what is less severe than this: debug, info, warning or error."""
    logging.getLogger().setLevel(level.upper())


def choose(environ: Mapping[str, str], stream: TextIO) -> str:
    """journald says in JOURNAL_STREAM which file it reads; children inherit it for other files."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return "json"
    if environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}":
        return "journal"
    return "text" if stream.isatty() else "json"


def escaped(text: str) -> str:
    """On one line, whatever it holds."""
    return text.translate(_ESCAPED)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """A traceback stays on lines of its own; what stands in them does not get more."""
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join(map(escaped, lines))


class JournalFormatter(TextFormatter):
    """Each line begins with its level; when it came is journald's business."""

    def __init__(self) -> None:
        logging.Formatter.__init__(self, "%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        level = _LEVELS.get(record.levelname, 6)
        return "\n".join(f"<{level}>{line}" for line in super().format(record).split("\n"))


class DaemonJsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        values = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        topic = getattr(record, "topic", None)
        if topic is not None:
            values["topic"] = topic
        if record.name != "logd":
            values["logger"] = record.name
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values)


_FORMATTERS: dict[str, type[logging.Formatter]] = {
    "text": TextFormatter, "json": DaemonJsonFormatter, "journal": JournalFormatter,
}  # fmt: skip
