"""A writer that never waits and never ends: what does not fit is dropped, counted and reported.

Whoever uses it gives it a lock, and calls `offer`, `report` and `after_fork` with that lock held;
the writer's own lock is only taken inside of it. `flush` and `end` are called without it, or the
others would wait too.

Always: `offered == sent + dropped`. Of those sent, all but `failed` are in the topic, in the spool,
or on their way; once it has ended, none is on its way.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from logd.client.writer import Writer
from logd.errors import LogdError

REOPEN_S = 5.0  # after the daemon refused for good, or the spool's disk failed
_WATCH_S = 5.0

OnRefused = Callable[[int, LogdError], None]


@dataclass(slots=True, eq=False)
class _Life:
    """One writer. They come one after the other, each until it fails."""

    writer: Writer = field(init=False)
    handed: int = 0  # messages, reports included
    refused: int = 0  # written by the writer's thread alone
    reports: list[int] = field(default_factory=list)  # which of those handed

    def hear_refusal(self, messages: int, error: LogdError) -> None:
        self.refused += messages

    @property
    def settled(self) -> int:
        return self.writer.acknowledged + self.refused

    @property
    def lost(self) -> int:
        """Of its messages, those that nobody will hear of any more; reports are not counted."""
        if self.writer.spool is not None:
            return self.refused  # the others wait there
        settled = self.settled
        return self.handed - self.writer.acknowledged - sum(at >= settled for at in self.reports)


class DroppingWriter:
    def __init__(
        self,
        lock: AbstractContextManager[Any],  # one that a thread may take twice
        make: Callable[[OnRefused], Writer],
        report: Callable[[int], bytes],
    ) -> None:
        self._lock, self._make, self._report = lock, make, report
        self._ended = False
        self._life: _Life | None = None
        self._begin()
        self._life = self._open()

    def _begin(self) -> None:
        self.offered = self.sent = self.dropped = 0
        self._life = None
        self._reopen_at_s = 0.0
        self._acknowledged = self._failed = 0  # of earlier lives
        self.gap = 0  # dropped since the last report
        self._gap_at: tuple[object, int] = (None, 0)  # what was settled when it began
        self._watcher: threading.Thread | None = None
        self._waited_at: tuple[object, int, int] = (None, 0, 0)  # in vain

    @property
    def acknowledged(self) -> int:
        return self._acknowledged + (self._life.writer.acknowledged if self._life else 0)

    @property
    def failed(self) -> int:
        return self._failed + (self._life.refused if self._life else 0)

    # -- with the lock held ---------------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        """Is it sure that the next message is dropped? Then it need not even be made."""
        if self._life is None:
            return self._ended or monotonic() < self._reopen_at_s
        return self.gap > 0 and self._gap_at == (self._life, self._life.settled)

    def offer(self, message: bytes) -> None:
        """Send it or drop it. What else goes wrong is raised; then it is dropped, and counted."""
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
        """The same as `offer` where it is stuck."""
        self.offered += 1
        self._drop()

    def report(self) -> bool:
        """Say how many are missing here, if any, and if there is room for that."""
        life = self._life
        if not self.gap:
            return True
        if life is None or self.is_stuck:
            return False
        if not self._write(life, self._report(self.gap)):
            self._gap_at = (life, life.settled)
            return False
        life.reports.append(life.handed - 1)
        self.gap = 0
        return True

    def _hand_over(self, message: bytes) -> bool:
        life = self._life or self._reopened()
        return life is not None and self.report() and self._write(life, message)

    def _write(self, life: _Life, message: bytes) -> bool:
        dropped = life.writer.dropped
        try:
            life.writer.write(message)
        except Exception:
            self._give_up(life)
            raise
        if life.writer.dropped != dropped:
            return False
        life.handed += 1
        return True

    def _drop(self) -> None:
        self.dropped += 1
        self.gap += 1
        if self.gap == 1 and self._life is not None:
            self._gap_at = (self._life, self._life.settled)
            self._watch(self._life)

    # -- a writer's life ------------------------------------------------------------------------

    def _open(self) -> _Life:
        life = _Life()
        life.writer = self._make(life.hear_refusal)
        return life

    def _reopened(self) -> _Life | None:
        if self.is_stuck:
            return None
        self._reopen_at_s = monotonic() + REOPEN_S
        self._life = self._open()
        return self._life

    def _give_up(self, life: _Life) -> None:
        """It has failed for good. After a while there will be another."""
        self._reopen_at_s = monotonic() + REOPEN_S
        self._count_out(life)
        _close(life.writer, 0.0)

    def _count_out(self, life: _Life) -> None:
        self._life = None
        self._acknowledged += life.writer.acknowledged
        self._failed += life.lost

    def _watch(self, life: _Life) -> None:
        """Let a thread wait for room: the program may have nothing to say for a long time."""
        if self._watcher is None:
            self._watcher = _started(lambda: self._report_later(life))

    def _report_later(self, life: _Life) -> None:
        while True:
            is_over = _flushed(life.writer, _WATCH_S)
            with self._lock:
                if self._is_reported(life) or is_over:
                    self._watcher = None
                    return

    def _is_reported(self, life: _Life) -> bool:
        """Or not for this thread to report any more?"""
        if self._life is not life or self._ended:
            return True
        try:
            return self.report()
        except Exception:  # noqa: BLE001  it stays to be said, and this thread says nothing else
            return False

    # -- without the lock -----------------------------------------------------------------------

    def flush(self, timeout_s: float) -> None:
        """Wait until all is stored, or not."""
        life = self._life
        if life is not None and not _flushed(life.writer, max(0.0, timeout_s)):
            self._waited_at = (life, life.settled, self.offered)

    def end(self, timeout_s: float) -> int:
        """Flush, report and close; how many are lost or dropped and nobody has been told."""
        if self._life and self._waited_at == (self._life, self._life.settled, self.offered):
            timeout_s = 0.0  # `logging` flushes, then closes: one wait is enough
        end_s = monotonic() + timeout_s
        self.flush(timeout_s)
        with self._lock:
            life, self._ended = self._life, True
            if self.gap and life is not None:
                with contextlib.suppress(Exception):  # whatever it is, the program goes on
                    self.report()
        if life is not None:
            self.flush(end_s - monotonic())
            _close(life.writer, end_s - monotonic())
        with self._lock:
            failed = self._failed
            if self._life is not None:
                self._count_out(self._life)
            return self.gap + self._failed - failed

    def after_fork(self) -> None:
        """In a child: what the parent has gathered is the parent's to send."""
        if self._life is not None:
            self._life.writer.abandon()
        self._begin()


def _flushed(writer: Writer, timeout_s: float) -> bool:
    """Is everything stored, or will never be? False: not yet."""
    with contextlib.suppress(Exception):  # the next write hears of it
        try:
            writer.flush(timeout_s)
        except TimeoutError:
            return False
    return True


def _close(writer: Writer, wait_s: float) -> None:
    """It may be about to connect, and take its time: that must not be the program's."""

    def close() -> None:
        with contextlib.suppress(Exception):  # whatever it is, the program goes on
            writer.close(0.0)

    closing = _started(close)
    if closing is not None and wait_s > 0:
        closing.join(wait_s)


def _started(run: Callable[[], None]) -> threading.Thread | None:
    """A thread, or None where the interpreter is about to end and starts no more."""
    thread = threading.Thread(target=run, name="logd-handler", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
