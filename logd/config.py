"""All settings of the daemon: default, unit, help, and whether a change needs a restart.

A value is taken from a flag, else from `LOGD_<NAME>`, else from the TOML file, else from here. No
other module contains a default. No value is a secret: secrets are in files that a setting names.
Imports nothing of logd except errors and units.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from logd.errors import BadRequest
from logd.wire import units
from logd.wire.units import Unit
from logd.wire.units import address as address

LOG_FORMATS = ("auto", "text", "json", "journal")
LOG_LEVELS = ("debug", "info", "warning", "error")
FSYNC_MODES = ("never", "interval", "batches", "always")
DEFAULT = "default"


def _setting(
    default: Any, unit: Unit, help_: str, *, topic: bool = False, fixed: bool = False
) -> Any:
    """`topic`: can be set per topic; `fixed`: a change needs a restart."""
    metadata = {"unit": unit, "help": help_, "topic": topic, "fixed": fixed}
    return dataclasses.field(default=default, metadata=metadata)


_fixed = partial(_setting, fixed=True)
_per_topic = partial(_setting, topic=True)


@dataclass(frozen=True, slots=True)
class Config:
    data_dir: Path = _fixed(Path("data"), units.DIRECTORY, "Directory that contains the topics.")
    host: str = _fixed(
        "127.0.0.1:1774", units.ADDRESS, "Address of the TCP listener. Port 0 selects a free port."
    )
    http_host: str = _fixed(
        "127.0.0.1:1775",
        units.ADDRESS_OR_OFF,
        "Address of the HTTP listener and the web page, or off.",
    )
    http_names: tuple[str, ...] = _setting(
        (), units.NAMES, "Additional host names that are accepted in HTTP requests."
    )
    syslog_host: str = _fixed(
        "off", units.ADDRESS_OR_OFF, "Address of the listener for syslog over TCP, or off."
    )
    syslog_topic: str = _fixed("syslog", units.TOPIC, "Topic for syslog messages.")
    access_file: str = _setting(
        "", units.FILE, "TOML file with tokens and permissions. If not set, access is unrestricted."
    )
    tls_cert: str = _setting(
        "", units.FILE, "PEM file with the server certificate. If set, all listeners use TLS."
    )
    tls_key: str = _setting(
        "", units.FILE, "PEM file with the private key. Without it, the key is read from tls-cert."
    )
    tls_client_ca: str = _setting(
        "",
        units.FILE,
        "PEM file with CA certificates. If set, clients need a certificate signed by one.",
    )
    allow_anonymous: bool = _fixed(
        False,
        units.SWITCH,
        "Allow listening on a public address without tokens and client certificates.",
    )
    fsync: str = _fixed(
        "interval",
        units.one_of(*FSYNC_MODES),
        "When data is synced to disk: never, interval, batches or always.",
        topic=True,
    )
    fsync_interval_s: float = _fixed(
        1.0, units.TIME, "Time between syncs, with fsync=interval.", topic=True
    )
    fsync_batches: int = _fixed(
        1000, units.COUNT, "Number of stored batches between syncs, with fsync=batches.", topic=True
    )
    partition_bytes: int = _per_topic(
        256 << 20, units.SIZE, "Size at which a new partition file is started."
    )
    partition_age_s: float = _per_topic(
        0.0, units.TIME_OR_NONE, "Age at which a new partition file is started; 0: never."
    )
    max_partitions: int = _per_topic(
        0, units.COUNT_OR_NONE, "Maximum number of files of a topic; 0: no limit."
    )
    max_bytes: int = _per_topic(0, units.SIZE_OR_NONE, "Maximum size of a topic; 0: no limit.")
    max_age_s: float = _per_topic(
        0.0, units.TIME_OR_NONE, "Delete files whose newest message is older; 0: never."
    )
    delete_hook: tuple[str, ...] = _per_topic(
        (), units.COMMAND, "Command that must succeed before a file is deleted."
    )
    hook_timeout_s: float = _per_topic(60.0, units.TIME, "Maximum run time of the delete hook.")
    min_free_bytes: int = _setting(
        1 << 20, units.SIZE_OR_NONE, "Refuse pushes if the disk has less free space; 0: never."
    )
    max_batch_bytes: int = _setting(
        8 << 20, units.SIZE, "Maximum size of a PUSH body. A change applies to new connections."
    )
    max_reply_bytes: int = _setting(
        64 << 20, units.SIZE, "Maximum size of a READ reply, unless it is a single batch."
    )
    max_unfinished_bytes: int = _setting(
        64 << 20, units.SIZE, "Memory for incomplete request bodies of all connections."
    )
    max_topics: int = _setting(10_000, units.COUNT, "Maximum number of topics.")
    allow_topics: tuple[str, ...] = _setting(
        (), units.GLOBS, "Patterns (* and ?) of topics that may be created. [] allows all."
    )
    max_topics_per_connection: int = _setting(
        0, units.COUNT_OR_NONE, "Maximum number of topics a connection may push to; 0: no limit."
    )
    max_cursors: int = _per_topic(1000, units.COUNT, "Maximum number of cursors per topic.")
    max_connections: int = _setting(10_000, units.COUNT, "Maximum number of connections.")
    max_connections_per_address: int = _setting(
        0, units.COUNT_OR_NONE, "Maximum number of connections from one address; 0: no limit."
    )
    connection_rate: int = _setting(
        0, units.COUNT_OR_NONE, "Maximum number of new connections per second; 0: no limit."
    )
    max_open_files: int = _fixed(
        0,
        units.COUNT_OR_NONE,
        "File descriptors for connections and files; 0: the limit of the system.",
    )
    idle_timeout_s: float = _setting(
        300.0, units.TIME, "Close connections that are idle for this time."
    )
    request_timeout_s: float = _setting(
        60.0, units.TIME, "Close connections that need more time to send a request."
    )
    stop_timeout_s: float = _setting(10.0, units.TIME, "Maximum duration of a shutdown.")
    log_format: str = _fixed(
        "auto",
        units.one_of(*LOG_FORMATS),
        "Format of the daemon's log: text, json or journal. With auto: text on a terminal, journal"
        " under journald, else json.",
    )
    log_level: str = _setting(
        "info",
        units.one_of(*LOG_LEVELS),
        "Minimum severity of log lines: debug, info, warning or error.",
    )

    sections: tuple[tuple[str, dict[str, Any]], ...] = ()  # TOML's [topics.<glob>], in order

    def __post_init__(self) -> None:
        if self.max_batch_bytes > self.max_unfinished_bytes:
            raise BadRequest("max-unfinished-bytes must not be smaller than max-batch-bytes")
        for name, value in (("tls-key", self.tls_key), ("tls-client-ca", self.tls_client_ca)):
            if value and not self.tls_cert:
                raise BadRequest(f"{name} requires tls-cert")

    def for_topic(self, name: str) -> Config:
        """The settings of one topic, from all sections that match it; the last one wins."""
        changes: dict[str, Any] = {}
        for glob, values in self.sections:
            if fnmatch.fnmatchcase(name, glob):
                changes |= values
        return dataclasses.replace(self, **changes) if changes else self

    def keeping_fixed(self, running: Config) -> Config:
        """These settings, except those that a running daemon cannot change."""
        kept = {f.name: getattr(running, f.name) for f in fields() if f.metadata["fixed"]}
        return dataclasses.replace(self, **kept)

    def differences(self, other: Config) -> list[str]:
        """The names of the settings that differ; `topics` stands for the per-topic sections."""
        names = [flag(f.name) for f in fields() if getattr(self, f.name) != getattr(other, f.name)]
        return names if self.sections == other.sections else [*names, "topics"]

    def lines(self) -> bytes:
        """`name: value` lines, the reply to CONFIG."""
        return "".join(f"{flag(f.name)}: {getattr(self, f.name)}\n" for f in fields()).encode()


class Settled(NamedTuple):
    """The settings, and the origin of each: a flag, a variable, a file, or the default."""

    config: Config
    origins: dict[str, str]


def fields() -> tuple[dataclasses.Field[Any], ...]:
    return tuple(field for field in dataclasses.fields(Config) if field.metadata)


def flag(name: str) -> str:
    """The name of a setting for users: `fsync-interval` for `fsync_interval_s`."""
    return name.removesuffix("_s").replace("_", "-")


def load(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Config:
    return settle(flags, environ, file).config


def settle(
    flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None
) -> Settled:
    """Determine every setting. Raises BadRequest for an invalid value or an unknown key."""
    toml = _read_toml(file) if file else {}
    values: dict[str, Any] = {"sections": _sections(toml.pop("topics", {}), file)}
    origins: dict[str, str] = {}
    for field in fields():
        name = flag(field.name)
        variable = "LOGD_" + name.upper().replace("-", "_")
        origins[name] = DEFAULT
        for source, origin, value in (
            (f"--{name}", f"--{name}", flags.get(name)),
            (variable, variable, environ.get(variable)),
            (f"{name} in {file}", str(file), toml.pop(name, None)),
        ):
            if value is not None and origins[name] == DEFAULT:
                values[field.name] = _checked(field, value, source)
                origins[name] = origin
    if toml:
        raise BadRequest(f"{file} has unknown keys: {', '.join(toml)}")
    return Settled(Config(**values), origins)


def _checked(field: dataclasses.Field[Any], value: Any, source: str) -> Any:
    try:
        return field.metadata["unit"].check(value)
    except (ValueError, TypeError) as error:
        raise BadRequest(f"{source}: {value!r}: {error}") from None


def _sections(tables: Any, file: Path | None) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The per-topic settings of a TOML file."""
    known = {flag(field.name): field for field in fields() if field.metadata["topic"]}
    if not isinstance(tables, dict):
        raise BadRequest(f'topics in {file}: must be sections such as [topics."audit-*"]')
    sections = []
    for glob, table in tables.items():
        values = {}
        if not isinstance(table, dict):
            raise BadRequest(f"{glob} in [topics] of {file}: must be a section")
        for name, value in table.items():
            source = f"{name} in [topics.{glob}] of {file}"
            if name not in known:
                raise BadRequest(f"{source}: not a per-topic setting; these are {', '.join(known)}")
            values[known[name].name] = _checked(known[name], value, source)
        sections.append((glob, values))
    return tuple(sections)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read {file}: {error}") from None
