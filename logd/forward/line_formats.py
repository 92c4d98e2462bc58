"""Converts a line to a JSON object: syslog, Apache common and combined, JSON.

Invariants: the object contains the whole line as `line`, or as `line64` in base64 if it is not
UTF-8; a line that cannot be parsed has no other fields. Times are ISO 8601 in UTC. Any bytes give
an object; nothing raises. Pure: no files, and the clock is a parameter.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

Fields = dict[str, Any]
Now = Callable[[], datetime]

MAX_MESSAGE_BYTES = 4 << 20

SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
FACILITIES = (
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv",
    "ftp", "ntp", "audit", "alert", "clock",
    *(f"local{n}" for n in range(8)),
)  # fmt: skip
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class LineFormat(StrEnum):
    none = "none"
    syslog = "syslog"
    common = "common"
    combined = "combined"
    json = "json"


def renderer(
    form: LineFormat, fields: Mapping[str, str], *, add_path: bool = False, now: Now | None = None
) -> Callable[[bytes, str], bytes] | None:
    """A function from a line and its path to a message; None if the message is the line itself."""
    parse = _parser(form, now or (lambda: datetime.now(UTC)))
    if parse is None and not fields and not add_path:
        return None

    def render(line: bytes, path: str) -> bytes:
        extra: Fields = {"path": _printable(path), **fields} if add_path else {**fields}
        return message(line, {**_parsed(parse, line), **extra})

    return render


def message(line: bytes, fields: Fields) -> bytes:
    """The object as JSON; with the line alone if it would be too large or not valid JSON."""
    try:
        whole = _dump({**fields, **_line(line)})
    except (ValueError, RecursionError):  # an infinite number, or too many levels
        whole = _dump(_line(line))
    return whole if len(whole) <= MAX_MESSAGE_BYTES else _dump({"line64": _base64(line)})


def _parser(form: LineFormat, now: Now) -> Callable[[str], Fields] | None:
    if form is LineFormat.syslog:
        return lambda text: parse_syslog(text, now())
    return {
        LineFormat.none: None,
        LineFormat.common: partial(parse_access, _COMMON_LINE),
        LineFormat.combined: partial(parse_access, _COMBINED_LINE),
        LineFormat.json: parse_json,
    }[form]


def _parsed(parse: Callable[[str], Fields] | None, line: bytes) -> Fields:
    text = _text(line)
    if parse is None or text is None:
        return {}
    return {name: value for name, value in parse(text).items() if value is not None}


def _line(line: bytes) -> Fields:
    text = _text(line)
    return {"line": text} if text is not None else {"line64": _base64(line)}


def _text(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _printable(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()


def _dump(fields: Fields) -> bytes:
    try:
        return json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can escape but UTF-8 cannot encode
        return json.dumps(fields, allow_nan=False).encode()


# -- syslog -----------------------------------------------------------------------------------

_PRI = r"(?:<(?P<pri>[0-9]{1,3})>)?"
_RFC5424 = re.compile(
    r"<(?P<pri>[0-9]{1,3})>1 (?P<time>\S+) (?P<host>\S+) (?P<application>\S+) (?P<pid>\S+)"
    r" (?P<id>\S+) (?P<data>-|(?:\[(?:[^\]\\\"]|\\.|\"(?:[^\"\\]|\\.)*\")*\])+)"
    r"(?: \ufeff?(?P<message>.*))?",
    re.DOTALL,
)
_HEAD = r"(?P<host>[^\s:\[\]]+) (?P<application>[^\s:\[\]]+)(?:\[(?P<pid>[^\]\s]+)\])?: ?"
_RFC3164 = re.compile(
    _PRI + r"(?P<month>[A-Z][a-z]{2}) (?P<day>[ 0-9]?[0-9]) (?P<clock>[0-9:]{8}) "
    rf"(?:{_HEAD})?(?P<message>.*)",
    re.DOTALL,
)
_ISO_LINE = re.compile(
    _PRI + r"(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}T\S+) " + rf"{_HEAD}(?P<message>.*)", re.DOTALL
)
_ELEMENT = re.compile(r"\[([^\s\]=\"]+)((?: [^\s=\]\"]+=\"(?:[^\"\\]|\\.)*\")*)\]")
_PARAMETER = re.compile(r" ([^\s=\]\"]+)=\"((?:[^\"\\]|\\.)*)\"")
_UNESCAPE = re.compile(r"\\([\"\\\]])")


def parse_syslog(text: str, now: datetime) -> Fields:
    """RFC 5424, RFC 3164, and RFC 3164 with ISO times, as rsyslog writes to files."""
    if match := _RFC5424.fullmatch(text):
        return _rfc5424(match)
    if match := _ISO_LINE.fullmatch(text):
        found = match.groupdict()
        return {"time": iso(found.pop("time")), **_priority(found.pop("pri")), **found}
    if match := _RFC3164.fullmatch(text):
        found = match.groupdict()
        month, day, clock = found.pop("month"), found.pop("day"), found.pop("clock")
        time = _dated(month, day, clock, now)
        return {"time": time, **_priority(found.pop("pri")), **found} if time else {}
    return {}


def _rfc5424(match: re.Match[str]) -> Fields:
    found = {name: None if value == "-" else value for name, value in match.groupdict().items()}
    data = found.pop("data")
    return {
        "time": iso(found.pop("time")),
        **_priority(found.pop("pri")),
        "host": found["host"],
        "application": found["application"],
        "pid": found["pid"],
        "message_id": found["id"],
        "data": _structured(data) if data else None,
        "message": match["message"],
    }


def _structured(data: str) -> dict[str, dict[str, str]]:
    return {
        element[1]: {
            name: _UNESCAPE.sub(r"\1", value) for name, value in _PARAMETER.findall(element[2])
        }
        for element in _ELEMENT.finditer(data)
    }


def _priority(pri: str | None) -> Fields:
    number = int(pri) if pri else 192
    if number >= 192:
        return {}
    return {"severity": SEVERITIES[number % 8], "facility": FACILITIES[number // 8]}


def _dated(month: str, day: str, clock: str, now: datetime) -> str | None:
    """RFC 3164 has no year and zone: take the latest local time that is before tomorrow."""
    if month not in MONTHS or not re.fullmatch(r"[0-9]{2}:[0-9]{2}:[0-9]{2}", clock):
        return None
    hour, minute, second = map(int, clock.split(":"))
    local = now.astimezone()
    for year in (local.year + 1, local.year, local.year - 1, local.year - 2, local.year - 3):
        try:  # 29 February does not exist in every year
            time = datetime(year, MONTHS.index(month) + 1, int(day), hour, minute, second)
            moment = time.astimezone(UTC)
        except (ValueError, OverflowError):
            continue
        if moment <= now + timedelta(days=1):
            return _utc(moment)
    return None


# -- Apache -----------------------------------------------------------------------------------

_COMMON = (
    r"(?P<host>\S+) (?P<ident>\S+) (?P<user>\S+) \[(?P<time>[^\]]+)\]"
    r" \"(?P<request>(?:[^\"\\]|\\.)*)\" (?P<status>[0-9]{3}|-) (?P<bytes>[0-9]{1,18}|-)"
)
_QUOTED = r"\"(?P<{}>(?:[^\"\\]|\\.)*)\""
_COMMON_LINE = re.compile(_COMMON)
_COMBINED_LINE = re.compile(
    _COMMON + " " + _QUOTED.format("referer") + " " + _QUOTED.format("agent") + r"(?: .*)?"
)
_REQUEST = re.compile(r"(?P<method>[A-Z]{1,20}) (?P<target>\S+)(?: (?P<protocol>HTTP/\S+))?")
_APACHE_TIME = re.compile(
    r"([0-9]{2})/([A-Z][a-z]{2})/([0-9]{4}):([0-9]{2}:[0-9]{2}:[0-9]{2}) ([+-][0-9]{4})"
)


def parse_access(line: re.Pattern[str], text: str) -> Fields:
    match = line.fullmatch(text.removesuffix("\r"))
    if match is None:
        return {}
    found: Fields = {
        name: None if value == "-" else value for name, value in match.groupdict().items()
    }
    for name in ("status", "bytes"):
        found[name] = int(found[name]) if found[name] else None
    request = _REQUEST.fullmatch(found["request"] or "")
    return {
        "time": _apache_time(found.pop("time") or ""),
        **found,
        **(request.groupdict() if request else {}),
        "message": found["request"],
    }


def _apache_time(text: str) -> str | None:
    match = _APACHE_TIME.fullmatch(text)
    if not match or match[2] not in MONTHS:
        return None
    day, month, year, clock, zone = match.groups()
    return iso(f"{year}-{MONTHS.index(month) + 1:02d}-{day}T{clock}{zone}")


# -- JSON -------------------------------------------------------------------------------------


def parse_json(text: str) -> Fields:
    """The fields of the object, except those that would replace the line."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {name: field for name, field in value.items() if name not in ("line", "line64")}


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


# -- times ------------------------------------------------------------------------------------


def iso(text: str | None) -> str | None:
    """An ISO time in UTC; None if there is none or it is invalid. Without a zone it is local."""
    if text is None:
        return None
    try:
        return _utc(datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, OverflowError, OSError):
        return None


def _utc(moment: datetime) -> str:
    spec = "microseconds" if moment.microsecond else "seconds"
    return moment.isoformat(timespec=spec).replace("+00:00", "Z")
