"""Detects that standard output was closed while a follower waits for messages.

The reader waits in a system call for up to 30 seconds. So a thread watches the output, and when its
other end is closed, interrupts the main thread with a signal. The signal interrupts waiting only:
messages that have arrived are always written completely.
"""

from __future__ import annotations

import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self, TypeVar

from cli.exit_codes import OutputClosed

T = TypeVar("T")
WAKE = signal.SIGUSR1


class OutputWatch:
    """Inside the `with` block, `each` passes on an iterator's items while `fd` is open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_closed = self._is_waiting = False

    def __enter__(self) -> Self:
        signal.signal(WAKE, self._wake)
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
            if self._is_closed:
                raise OutputClosed
            return next(source, None)
        finally:
            self._is_waiting = False

    def _wake(self, number: int, frame: FrameType | None) -> None:
        if self._is_waiting and self._is_closed:
            raise OutputClosed

    def _watch(self) -> None:
        wait_while_open(self._fd)
        self._is_closed = True
        signal.pthread_kill(threading.main_thread().ident or 0, WAKE)


@contextmanager
def watched(fd: int, *, is_following: bool) -> Iterator[Callable[[Iterator[Any]], Iterator[Any]]]:
    """The `each` of a watch; without following, the iterator itself."""
    if is_following:
        with OutputWatch(fd) as watch:
            yield watch.each
    else:
        yield iter


def wait_while_open(fd: int, until_ms: int | None = None) -> bool:
    """True at the time `until_ms`; False as soon as the other end of `fd` is closed."""
    poll = select.poll()
    poll.register(fd, 0)  # errors and hang-ups are always reported
    if until_ms is None:
        poll.poll()
        return False
    while (left_ms := until_ms - time.time_ns() // 1_000_000) > 0:
        if poll.poll(min(left_ms, 60_000)):  # the clock may be set in the meantime
            return False
    return True
