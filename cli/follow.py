"""A follower's end while nothing arrives: nobody reads the output any more.

The reader waits in a system call for up to half a minute. So another thread watches the output, and
wakes the main thread by a signal when the other end of it is closed. The signal only interrupts the
wait: what has arrived is always written whole.
"""

from __future__ import annotations

import select
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Self, TypeVar

from cli.exit_codes import OutputGone

T = TypeVar("T")
WAKE = signal.SIGUSR1


class Watch:
    """While it is entered, `each` hands on what an iterator gives, for as long as `fd` is read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_gone = self._is_waiting = False

    def __enter__(self) -> Self:
        signal.signal(WAKE, self._woken)
        threading.Thread(target=self._watch, name="output-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(WAKE, signal.SIG_IGN)  # the thread may still send it

    def each(self, source: Iterator[T]) -> Iterator[T]:
        while (item := self._next(source)) is not None:
            yield item

    def _next(self, source: Iterator[T]) -> T | None:
        self._is_waiting = True
        try:
            if self._is_gone:
                raise OutputGone
            return next(source, None)
        finally:
            self._is_waiting = False

    def _woken(self, number: int, frame: FrameType | None) -> None:
        if self._is_waiting and self._is_gone:
            raise OutputGone

    def _watch(self) -> None:
        wait_while_read(self._fd)
        self._is_gone = True
        signal.pthread_kill(threading.main_thread().ident or 0, WAKE)


def wait_while_read(fd: int, until_ms: int | None = None) -> bool:
    """True when it is `until_ms`; False as soon as the other end of `fd` is closed."""
    poll = select.poll()
    poll.register(fd, 0)  # no event but those that cannot be left out: an error, a hang-up
    if until_ms is None:
        poll.poll()
        return False
    while (left_ms := until_ms - time.time_ns() // 1_000_000) > 0:
        if poll.poll(min(left_ms, 60_000)):  # the clock may be set meanwhile
            return False
    return True
