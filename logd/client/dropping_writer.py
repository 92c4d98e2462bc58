"""A writer that never blocks and never fails: messages without room are dropped and reported.

The owner passes a lock, and holds it when it calls `offer`, `report` and `after_fork`; the lock of
the writer is only taken inside it. `flush` and `end` are called without the lock, because they
wait.

Invariants: `offered == sent + dropped`. Of the messages sent, all except `failed` are stored, in
the spool, or in flight; after the end, none is in flight.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from logd.client.writer import Writer
from logd.errors import LogdError

REOPEN_S = 5.0  # after a writer has failed
_WATCH_S = 5.0

OnRefused = Callable[[int, LogdError], None]


@dataclass(slots=True, eq=False)
class _CountedWriter:
    """A writer and its counts. When it fails, another one follows."""

    writer: Writer = field(init=False)
    written: int = 0  # messages, including reports
    refused: int = 0  # only the thread of the writer changes it
    reports: list[int] = field(default_factory=list)  # which of the messages written

    def count_refusal(self, messages: int, error: LogdError) -> None:
        self.refused += messages

    @property
    def settled(self) -> int:
        return self.writer.acknowledged + self.refused

    @property
    def lost(self) -> int:
        """Messages that will not be stored and are not reported as such; without reports."""
        if self.writer.spool is not None:
            return self.refused  # the others are in the spool
        settled = self.settled
        return self.written - self.writer.acknowledged - sum(at >= settled for at in self.reports)


class DroppingWriter:
    def __init__(
        self,
        lock: AbstractContextManager[Any],  # reentrant
        make: Callable[[OnRefused], Writer],
        report: Callable[[int], bytes],
    ) -> None:
        self._lock, self._make, self._report = lock, make, report
        self._ended = False
        self._current: _CountedWriter | None = None
        self._begin()
        self._current = self._open()

    def _begin(self) -> None:
        self.offered = self.sent = self.dropped = 0
        self._current = None
        self._reopen_at_s = 0.0
        self._acknowledged = self._failed = 0  # of earlier writers
        self.gap = 0  # dropped since the last report
        self._gap_at: tuple[object, int] = (None, 0)  # the settled messages at its start
        self._watcher: threading.Thread | None = None
        self._waited_at: tuple[object, int, int] = (None, 0, 0)  # and timed out

    @property
    def acknowledged(self) -> int:
        return self._acknowledged + (self._current.writer.acknowledged if self._current else 0)

    @property
    def failed(self) -> int:
        return self._failed + (self._current.refused if self._current else 0)

    # -- with the lock held ---------------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        """Will the next message certainly be dropped? Then it need not be formatted."""
        if self._current is None:
            return self._ended or monotonic() < self._reopen_at_s
        return self.gap > 0 and self._gap_at == (self._current, self._current.settled)

    def offer(self, message: bytes) -> None:
        """Send or drop the message. If an error is raised, the message is dropped and counted."""
        self.offered += 1
        taken = False
        try:
            taken = self._hand_over(message)
        finally:
            if taken:
                self.sent += 1
            else:
                self._drop()

    def drop(self) -> None:
        """Like `offer` while `is_stuck`."""
        self.offered += 1
        self._drop()

    def report(self) -> bool:
        """Write how many messages were dropped, if any; False if there is no room for that."""
        current = self._current
        if not self.gap:
            return True
        if current is None or self.is_stuck:
            return False
        if not self._write(current, self._report(self.gap)):
            self._gap_at = (current, current.settled)
            return False
        current.reports.append(current.written - 1)
        self.gap = 0
        return True

    def _hand_over(self, message: bytes) -> bool:
        current = self._current or self._reopened()
        return current is not None and self.report() and self._write(current, message)

    def _write(self, current: _CountedWriter, message: bytes) -> bool:
        dropped = current.writer.dropped
        try:
            current.writer.write(message)
        except Exception:
            self._give_up(current)
            raise
        if current.writer.dropped != dropped:
            return False
        current.written += 1
        return True

    def _drop(self) -> None:
        self.dropped += 1
        self.gap += 1
        if self.gap == 1 and self._current is not None:
            self._gap_at = (self._current, self._current.settled)
            if self._watcher is None:  # the program may not log again for a long time
                self._watcher = _started(partial(self._report_later, self._current))

    # -- writers ----------------------------------------------------------------------------------

    def _open(self) -> _CountedWriter:
        current = _CountedWriter()
        current.writer = self._make(current.count_refusal)
        return current

    def _reopened(self) -> _CountedWriter | None:
        if self.is_stuck:
            return None
        self._reopen_at_s = monotonic() + REOPEN_S
        self._current = self._open()
        return self._current

    def _give_up(self, current: _CountedWriter) -> None:
        """The writer has failed. Another one is opened after a while."""
        self._reopen_at_s = monotonic() + REOPEN_S
        self._count_out(current)
        _close(current.writer, 0.0)

    def _count_out(self, current: _CountedWriter) -> None:
        self._current = None
        self._acknowledged += current.writer.acknowledged
        self._failed += current.lost

    def _report_later(self, current: _CountedWriter) -> None:
        """In a thread: wait for room."""
        while True:
            is_over = _flushed(current.writer, _WATCH_S)
            with self._lock:
                if self._is_reported(current) or is_over:
                    self._watcher = None
                    return

    def _is_reported(self, current: _CountedWriter) -> bool:
        """Has the gap been reported, or is it no longer this thread's task?"""
        if self._current is not current or self._ended:
            return True
        try:
            return self.report()
        except Exception:  # noqa: BLE001  it is reported later
            return False

    # -- without the lock -----------------------------------------------------------------------

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is stored, or the time is over."""
        current = self._current
        if current is not None and not _flushed(current.writer, max(0.0, timeout_s)):
            self._waited_at = (current, current.settled, self.offered)

    def end(self, timeout_s: float) -> int:
        """Flush, report and close; returns how many messages are missing without a report."""
        current = self._current
        if current and self._waited_at == (current, current.settled, self.offered):
            timeout_s = 0.0  # `logging` flushes and then closes: wait only once
        end_s = monotonic() + timeout_s
        self.flush(timeout_s)
        with self._lock:
            current, self._ended = self._current, True
            if self.gap and current is not None:
                with contextlib.suppress(Exception):  # no error may reach the program
                    self.report()
        if current is not None:
            self.flush(end_s - monotonic())
            _close(current.writer, end_s - monotonic())
        with self._lock:
            failed = self._failed
            if self._current is not None:
                self._count_out(self._current)
            return self.gap + self._failed - failed

    def after_fork(self) -> None:
        """In a forked child: the parent sends what it has buffered."""
        if self._current is not None:
            self._current.writer.abandon()
        self._begin()


def _flushed(writer: Writer, timeout_s: float) -> bool:
    """Is everything stored, or has the writer failed?"""
    with contextlib.suppress(Exception):  # the next write raises it
        try:
            writer.flush(timeout_s)
        except TimeoutError:
            return False
    return True


def _close(writer: Writer, wait_s: float) -> None:
    """Close it in a thread: it may be connecting, and the program must not wait for that."""

    def close() -> None:
        with contextlib.suppress(Exception):  # no error may reach the program
            writer.close(0.0)

    closing = _started(close)
    if closing is not None and wait_s > 0:
        closing.join(wait_s)


def _started(run: Callable[[], None]) -> threading.Thread | None:
    """A thread; None if the interpreter is ending and starts no more threads."""
    thread = threading.Thread(target=run, name="logd-handler", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
