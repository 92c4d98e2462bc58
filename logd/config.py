"""Every setting of the daemon, once: its default, its unit, its check, its help.

A value comes from a flag, else from `LOGD_<NAME>`, else from the TOML file, else from here. Nothing
else in logd knows a default. Imports nothing of logd but its errors.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logd.errors import BadRequest

LOG_FORMATS = ("auto", "text", "json", "journal")
FSYNC_MODES = ("never", "interval", "batches", "always")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):([0-9]{1,5})")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_BYTES = re.compile(r"([0-9]{1,15})\s*(k|m|g|ki|mi|gi)?b?", re.IGNORECASE)
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_SECONDS_IN = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def address(value: Any) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(str(value))
    if match is None or int(match[2]) > 65535:
        raise ValueError("must be <host>:<port>, for example 127.0.0.1:1774 or [::1]:1774")
    return match[1].strip("[]"), int(match[2])


def _address_text(value: Any) -> str:
    address(value)
    return str(value)


def _address_or_off(value: Any) -> str:
    return "off" if value == "off" else _address_text(value)


def _log_format(value: Any) -> str:
    if value not in LOG_FORMATS:
        raise ValueError(f"must be one of {', '.join(LOG_FORMATS)}")
    return str(value)


def _topic(value: Any) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", str(value)):
        raise ValueError("must be a topic's name")
    return str(value)


def _words(value: Any) -> tuple[str, ...]:
    """A list in TOML, or one string with commas between."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError('must be a list of names, for example ["logs.example"]')
    return tuple(word.strip() for word in words if word.strip())


def _bytes(value: Any) -> int:
    match = _BYTES.fullmatch(str(value))
    if match is None:
        raise ValueError("must be a size such as 1048576, 64KB or 256MiB")
    return int(match[1]) * _UNITS[(match[2] or "").lower()]


def _positive_bytes(value: Any) -> int:
    size = _bytes(value)
    if size == 0:
        raise ValueError("must be at least 1 byte")
    return size


def _seconds(value: Any) -> float:
    match = _SECONDS.fullmatch(str(value))
    if match is None:
        raise ValueError("must be a time such as 1, 0.5s, 200ms, 10m, 2h or 7d")
    return float(match[1]) * _SECONDS_IN[(match[2] or "s").lower()]


def _positive_seconds(value: Any) -> float:
    seconds = _seconds(value)
    if seconds <= 0:
        raise ValueError("must be more than 0")
    return seconds


def _count(value: Any) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", str(value)) or int(value) == 0:
        raise ValueError("must be a whole number from 1 on")
    return int(value)


def _fsync(value: Any) -> str:
    if value not in FSYNC_MODES:
        raise ValueError(f"must be one of {', '.join(FSYNC_MODES)}")
    return str(value)


def _count_or_none(value: Any) -> int:
    return 0 if str(value) == "0" else _count(value)


def _arguments(value: Any) -> tuple[str, ...]:
    """A command as a list in TOML, or as one string that is split as a shell would."""
    words = shlex.split(value) if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError('must be a list of words, for example ["/usr/bin/cp", "-t", "/backup"]')
    return tuple(words)


def _setting(default: Any, check: Callable[[Any], Any], help_: str, *, topic: bool = False) -> Any:
    """`topic`: may be set for single topics as well."""
    metadata = {"check": check, "help": help_, "topic": topic}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Config:
    data_dir: Path = _setting(Path("data"), Path, "where the topics are kept")
    host: str = _setting(
        "127.0.0.1:1774", _address_text, "address of the line protocol; port 0 takes a free one"
    )
    http_host: str = _setting(
        "127.0.0.1:1775", _address_or_off, "address of HTTP and the web page, or off"
    )
    http_names: tuple[str, ...] = _setting(
        (), _words, "names that HTTP clients may call this machine by, besides its own"
    )
    syslog_host: str = _setting(
        "off", _address_or_off, "address to take syslog over TCP at, or off"
    )
    syslog_topic: str = _setting("syslog", _topic, "the topic that syslog goes to")
    fsync: str = _setting(
        "interval",
        _fsync,
        "when data is synced to disk: never, interval, batches or always",
        topic=True,
    )
    fsync_interval_s: float = _setting(
        1.0, _positive_seconds, "with fsync=interval: how often", topic=True
    )
    fsync_batches: int = _setting(
        1000, _count, "with fsync=batches: after how many stored batches", topic=True
    )
    partition_bytes: int = _setting(
        256 << 20,
        _positive_bytes,
        "a topic goes on in a new file once one has this size",
        topic=True,
    )
    partition_age_s: float = _setting(
        0.0, _seconds, "or once it is this old; 0 for never", topic=True
    )
    max_partitions: int = _setting(
        0, _count_or_none, "a topic keeps at most so many files; 0 for all", topic=True
    )
    max_bytes: int = _setting(0, _bytes, "and at most so many bytes; 0 for all", topic=True)
    max_age_s: float = _setting(
        0.0, _seconds, "and none whose newest message is older; 0 for any age", topic=True
    )
    delete_hook: tuple[str, ...] = _setting(
        (), _arguments, "a program that must exit 0 before a file is deleted", topic=True
    )
    hook_timeout_s: float = _setting(
        60.0, _positive_seconds, "how long the delete hook may take", topic=True
    )
    max_batch_bytes: int = _setting(8 << 20, _positive_bytes, "largest body of a PUSH")
    max_reply_bytes: int = _setting(
        64 << 20, _positive_bytes, "largest reply to a READ, if more than one batch"
    )
    max_unfinished_bytes: int = _setting(
        64 << 20, _positive_bytes, "memory for bodies still on their way, all connections"
    )
    max_topics: int = _setting(10_000, _count, "how many topics there may be")
    max_cursors: int = _setting(1000, _count, "how many cursors a topic may have", topic=True)
    max_connections: int = _setting(10_000, _count, "how many connections there may be")
    idle_timeout_s: float = _setting(
        300.0, _positive_seconds, "a connection that does nothing this long is closed"
    )
    request_timeout_s: float = _setting(
        60.0, _positive_seconds, "so is one that takes this long to send one request"
    )
    stop_timeout_s: float = _setting(10.0, _positive_seconds, "how long a stop may take")
    log_format: str = _setting(
        "auto",
        _log_format,
        "the daemon's own log: text, json or journal; auto is text on a terminal, journal where"
        " journald reads it, else json",
    )

    sections: tuple[tuple[str, dict[str, Any]], ...] = ()  # TOML's [topics.<glob>], in order

    def __post_init__(self) -> None:
        if self.max_batch_bytes > self.max_unfinished_bytes:
            raise BadRequest("max-unfinished-bytes must not be smaller than max-batch-bytes")

    def for_topic(self, name: str) -> Config:
        """The settings of one topic: all sections whose glob fits it, the last one wins."""
        changes: dict[str, Any] = {}
        for glob, values in self.sections:
            if fnmatch.fnmatchcase(name, glob):
                changes |= values
        return dataclasses.replace(self, **changes) if changes else self

    def lines(self) -> bytes:
        """`name: value` lines, as CONFIG answers them."""
        return "".join(f"{flag(f.name)}: {getattr(self, f.name)}\n" for f in fields()).encode()


def fields() -> tuple[dataclasses.Field[Any], ...]:
    return tuple(field for field in dataclasses.fields(Config) if field.metadata)


def flag(name: str) -> str:
    """The name people use: `fsync-interval` for `fsync_interval_s`."""
    return name.removesuffix("_s").replace("_", "-")


def load(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Config:
    """Settle every setting; a wrong value or an unknown key is refused by its name."""
    toml = _read_toml(file) if file else {}
    values: dict[str, Any] = {"sections": _sections(toml.pop("topics", {}), file)}
    for field in fields():
        name = flag(field.name)
        variable = "LOGD_" + name.upper().replace("-", "_")
        for source, value in (
            (f"--{name}", flags.get(name)),
            (variable, environ.get(variable)),
            (f"{name} in {file}", toml.pop(name, None)),
        ):
            if value is not None:
                values[field.name] = _checked(field, value, source)
                break
    if toml:
        raise BadRequest(f"{file} has unknown keys: {', '.join(toml)}")
    return Config(**values)


def _checked(field: dataclasses.Field[Any], value: Any, source: str) -> Any:
    try:
        return field.metadata["check"](value)
    except (ValueError, TypeError) as error:
        raise BadRequest(f"{source}: {value!r}: {error}") from None


def _sections(tables: Any, file: Path | None) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The settings that a TOML file makes for single topics."""
    known = {flag(field.name): field for field in fields() if field.metadata["topic"]}
    sections = []
    for glob, table in tables.items() if isinstance(tables, dict) else ():
        values = {}
        for name, value in table.items() if isinstance(table, dict) else ():
            source = f"{name} in [topics.{glob}] of {file}"
            if name not in known:
                raise BadRequest(f"{source}: not a setting of topics; those are {', '.join(known)}")
            values[known[name].name] = _checked(known[name], value, source)
        sections.append((glob, values))
    return tuple(sections)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read {file}: {error}") from None
