"""Rejected requests in the daemon's log: one line per error code and client address per minute.

The first rejection of a kind is logged at once; the following ones are counted, and their number
is logged at the end of the minute. Memory and log are bounded: above `MAX_KINDS` the oldest kinds
are forgotten, above `MAX_LINES` per minute only a number is logged. Knows neither sockets nor a
clock.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from logd.errors import LogdError, NotFound, OutOfRange, ShuttingDown

PERIOD_S = 60.0
MAX_KINDS = 1024
MAX_LINES = 100
_EXPECTED = (NotFound, OutOfRange, ShuttingDown)  # correct clients get these, too
log = logging.getLogger("logd")


@dataclass(slots=True)
class _Kind:
    since_s: float
    repeats: int
    text: str
    level: int


class RejectionLog:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._kinds: OrderedDict[tuple[str, str], _Kind] = OrderedDict()  # oldest period first
        self._lines = self._left_out = 0
        self._since_s = now_s()

    def note(self, error: LogdError, client: str, count: int = 1) -> None:
        """`count` requests from this address were answered with this error."""
        level = logging.INFO if isinstance(error, _EXPECTED) else logging.WARNING
        self.note_code(error.code, client, error.log_text, level, count)

    def note_code(
        self, code: str, client: str, text: str, level: int = logging.WARNING, count: int = 1
    ) -> None:
        key = code, client
        kind = self._kinds.get(key)
        if kind is not None:
            kind.repeats += count
            kind.text = text
            return
        if len(self._kinds) >= MAX_KINDS:
            self._left_out += self._kinds.popitem(last=False)[1].repeats
        self._kinds[key] = kind = _Kind(self._now_s(), 0, text, level)
        self._say(key, kind, f" ({count} times at once)" if count > 1 else "", count)

    def report(self) -> None:
        """Log the repetitions of periods that are over. Called once per second."""
        now_s = self._now_s()
        while self._kinds:
            key, kind = next(iter(self._kinds.items()))
            if now_s - kind.since_s < PERIOD_S:
                break
            del self._kinds[key]
            if kind.repeats:
                self._kinds[key] = _Kind(now_s, 0, kind.text, kind.level)
                times = f" ({kind.repeats} times in the last {PERIOD_S:.0f} s)"
                self._say(key, kind, times, kind.repeats)
        if now_s - self._since_s >= PERIOD_S:
            if self._left_out:
                past_s = now_s - self._since_s
                log.warning("rejected %d more requests in the last %.0f s", self._left_out, past_s)
            self._since_s, self._lines, self._left_out = now_s, 0, 0

    def _say(self, key: tuple[str, str], kind: _Kind, times: str, count: int) -> None:
        if self._lines >= MAX_LINES:
            self._left_out += count
            return
        self._lines += 1
        text = f": {kind.text}" if kind.text else ""
        code, client = key
        log.log(kind.level, "rejected %s from %s%s%s", code, client or "unknown", times, text)
