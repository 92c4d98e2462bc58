"""The values of settings: sizes, times, addresses, lists, each with a check.

A `Unit` reads a value from a flag, a variable or a TOML file, and raises a ValueError that
describes valid values. It also writes a value in a form that it can read. Pure: no defaults
and no files.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from logd.wire.requests import TOPIC_NAME

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):([0-9]{1,5})")
_GLOB = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,128}")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_BYTES = re.compile(r"([0-9]{1,15})\s*(k|m|g|ki|mi|gi)?b?", re.IGNORECASE)
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_SECONDS_IN = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SWITCHES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


class Unit(NamedTuple):
    """How a value is read, and how it is written to a TOML file."""

    check: Callable[[Any], Any]
    toml: Callable[[Any], str]


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


def _topic(value: Any) -> str:
    if not re.fullmatch(TOPIC_NAME, str(value)):
        raise ValueError("must be a topic name")
    return str(value)


def _words(value: Any) -> tuple[str, ...]:
    """A list in TOML, or one string with commas."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError('must be a list of names, for example ["logs.example"]')
    return tuple(word.strip() for word in words if word.strip())


def globs(value: Any) -> tuple[str, ...]:
    words = _words(value)
    if not all(_GLOB.fullmatch(word) for word in words):
        raise ValueError('must be a list of topic patterns with * ? [ ], for example ["app-*"]')
    return words


def _bytes(value: Any) -> int:
    match = _BYTES.fullmatch(str(value))
    if match is None:
        raise ValueError("must be a size such as 1048576, 64KB or 256MiB")
    return int(match[1]) * _UNITS[(match[2] or "").lower()]


def _seconds(value: Any) -> float:
    match = _SECONDS.fullmatch(str(value))
    if match is None:
        raise ValueError("must be a time such as 1, 0.5s, 200ms, 10m, 2h or 7d")
    return float(match[1]) * _SECONDS_IN[(match[2] or "s").lower()]


def _positive(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        number = check(value)
        if number <= 0:
            raise ValueError("must be more than 0")
        return number

    return checked


def _count(value: Any) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", str(value)) or int(value) == 0:
        raise ValueError("must be a whole number of at least 1")
    return int(value)


def _count_or_none(value: Any) -> int:
    return 0 if str(value) == "0" else _count(value)


def _switch(value: Any) -> bool:
    found = _SWITCHES.get(str(value).lower())
    if found is None:
        raise ValueError("must be yes or no")
    return found


def _file(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("must be a path, or credential:<name>")
    return value


def _arguments(value: Any) -> tuple[str, ...]:
    """A command as a list in TOML, or as one string with shell quoting."""
    words = shlex.split(value) if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError('must be a list of words, for example ["/usr/bin/cp", "-t", "/backup"]')
    return tuple(words)


def one_of(*words: str) -> Unit:
    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return Unit(check, _quoted)


def _quoted(value: Any) -> str:
    return json.dumps(str(value), ensure_ascii=False)


def _size(value: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value and value % size == 0:
            return f'"{value // size}{unit}"'
    return str(value)


def _time(value: float) -> str:
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if value and value % seconds == 0:
            return f'"{value / seconds:g}{unit}"'
    return f'"{value:g}s"' if value else "0"


def _list(values: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_quoted, values))}]"


ADDRESS, ADDRESS_OR_OFF = Unit(_address_text, _quoted), Unit(_address_or_off, _quoted)
DIRECTORY, FILE, TOPIC = Unit(Path, _quoted), Unit(_file, _quoted), Unit(_topic, _quoted)
SIZE, SIZE_OR_NONE = Unit(_positive(_bytes), _size), Unit(_bytes, _size)
TIME, TIME_OR_NONE = Unit(_positive(_seconds), _time), Unit(_seconds, _time)
COUNT, COUNT_OR_NONE = Unit(_count, str), Unit(_count_or_none, str)
SWITCH = Unit(_switch, lambda value: str(value).lower())
NAMES, GLOBS, COMMAND = Unit(_words, _list), Unit(globs, _list), Unit(_arguments, _list)
