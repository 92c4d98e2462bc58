"""Times and durations on the command line: `10m` (ago), an ISO date and time, or `@<unix ms>`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from cli.exit_codes import UsageError

Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Start at this time: 10m (ago), 2026-01-31T12:00:00Z (local time without a zone) or"
        " @<unix ms>.",
    ),
]
UntilTime = Annotated[str | None, typer.Option(metavar="TIME", help="Stop before this time.")]

_DURATION = re.compile(r"(?:[0-9]{1,9}(?:ms|[smhdw]))+")
_PART = re.compile(r"([0-9]+)(ms|[smhdw])")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def parse_duration_s(text: str, option: str, other: str) -> float:
    """Seconds of `30s` or `1h30m`; `0` needs no unit. `other` names other values of the option."""
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise UsageError(f"invalid duration {text!r} for {option}: use 30s, 1h30m, {other}")
    return _duration_ms(text) / 1000


def parse_since(text: str, now_ms: int, option: str = "--since", other: str = "") -> int:
    """Unix milliseconds. A time without a zone is local time.

    `other` names other values of the option, for the error message.
    """
    if re.fullmatch(r"@[0-9]{1,18}", text):
        return int(text[1:])
    if _DURATION.fullmatch(text):
        return max(0, now_ms - _duration_ms(text))
    try:
        return max(0, (datetime.fromisoformat(text).astimezone(UTC) - _EPOCH) // _MS)
    except (ValueError, OverflowError):
        raise UsageError(
            f"invalid time {text!r} for {option}: use {other}10m, 1h30m, 2026-01-31T12:00:00Z or"
            " @<unix ms>"
        ) from None


def _duration_ms(text: str) -> int:
    return sum(int(count) * _UNIT_MS[unit] for count, unit in _PART.findall(text))
