"""The log of the daemon: text for a terminal, JSON for programs, or the format of journald.

A record is one line, except for its traceback, and text from clients cannot put control characters,
line ends or a change of writing direction into it. Imports nothing of logd.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

_LEVELS = {"CRITICAL": 2, "ERROR": 3, "WARNING": 4, "INFO": 6, "DEBUG": 7}  # as in syslog
_HIDDEN = (
    *range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)  # fmt: skip
_ESCAPED = {code: ascii(chr(code))[1:-1] for code in _HIDDEN}


def set_up(form: str, level: str, environ: Mapping[str, str], stream: TextIO = sys.stderr) -> str:
    """Write every record to `stream`. Returns the format that was chosen."""
    if form == "auto":
        form = choose(environ, stream)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_FORMATTERS[form]())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)
    return form


def set_level(level: str) -> None:
    """Log records of this level and above: debug, info, warning or error."""
    logging.getLogger().setLevel(level.upper())


def choose(environ: Mapping[str, str], stream: TextIO) -> str:
    """JOURNAL_STREAM names the file that journald reads; child processes inherit it, too."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return "json"
    if environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}":
        return "journal"
    return "text" if stream.isatty() else "json"


def escaped(text: str) -> str:
    """The text on one line."""
    return text.translate(_ESCAPED)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """A traceback has its own lines, and text in it cannot add others."""
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join(map(escaped, lines))


class JournalFormatter(TextFormatter):
    """Each line begins with its level; journald adds the time."""

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
