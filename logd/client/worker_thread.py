"""A thread that looks after something whenever that is due, and sleeps otherwise.

Everything happens with its owner's lock held, but for sleeping, what waits for the network
(`unlocked`), and what belongs to the program (`later`). It starts when it is first needed. What it
looks after decides what is due and what to watch; nothing here knows of batches.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Protocol, TypeVar

T = TypeVar("T")

_NESTED_S = 0.05  # of sleep at a time, where a callback waits for its own thread
_log = logging.getLogger("logd.writer")


class Job(Protocol):
    """All of it is called with the lock held."""

    def turn(self) -> float:
        """Do what is due now; in how many seconds to look again, whatever happens."""

    def watched(self) -> tuple[int, int] | None:
        """The descriptor to wake up for, and the events of it."""

    def crashed(self, error: Exception) -> None:
        """The thread ends, by a mistake in the code."""


class WorkerThread:
    def __init__(self, lock: threading.Lock, job: Job) -> None:
        self._lock, self._job = lock, job
        self._waiters: list[threading.Lock] = []  # one for each thread that waits
        self._later: list[Callable[[], object]] = []
        self._thread: threading.Thread | None = None
        self._bell = -1
        self._wakes_at_s = 0.0  # while it sleeps
        self._asked = False  # somebody wants it to look again, and it was not asleep
        self._ended = False

    @property
    def is_current(self) -> bool:
        """Is the caller this very thread, in a callback or at work?"""
        return self._thread is not None and threading.get_ident() == self._thread.ident

    def attend(self, within_s: float) -> None:
        """Make sure that the thread is there, and has a look before this time is over."""
        if self._thread is None:
            self._start()
        elif not self._wakes_at_s:
            self._asked = self._asked or not self.is_current
        elif self._wakes_at_s > monotonic() + within_s:
            self._wakes_at_s = 0.0
            os.eventfd_write(self._bell, 1)

    @property
    def has_calls(self) -> bool:
        return bool(self._later)

    def later(self, call: Callable[[], object]) -> None:
        """Call this from the thread, without the lock."""
        self._later.append(call)

    def wait(self, timeout_s: float | None) -> None:
        """Until the thread has done something, or this time is over. It may be about nothing."""
        if self.is_current:  # a callback: nobody else would do it, or tell it that all is done
            self._turn(_NESTED_S if timeout_s is None else min(timeout_s, _NESTED_S))
            return
        self.attend(math.inf)  # nobody is woken: what is to be done is known
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        timeout_s = -1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        self.unlocked(partial(waiter.acquire, timeout=timeout_s))

    def wake_all(self) -> None:
        """Those who wait are to look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()

    def end(self) -> None:
        """Stop it, and wait until it has. The lock is released meanwhile."""
        if self._ended:
            return
        self._ended = True
        if self._thread is not None and not self.is_current:
            os.eventfd_write(self._bell, 1)
            self.unlocked(self._thread.join)
        self.call_later()
        self.wake_all()
        if self._bell >= 0:
            bell, self._bell = self._bell, -1
            os.close(bell)

    def abandon(self) -> None:
        """In a forked child, which has no such thread: let go of the copy of what it woke up by."""
        if self._bell >= 0:
            bell, self._bell = self._bell, -1
            os.close(bell)

    def unlocked(self, call: Callable[[], T]) -> T:
        """What waits. Not a context manager: a signal in the middle of one would break the lock."""
        try:
            self._lock.release()
            return call()
        finally:
            self._lock.acquire()

    def call_later(self) -> bool:
        """Make the calls that are due; were there any?"""
        later, self._later = self._later, []
        if later:
            self.unlocked(partial(_call_all, later))
        return bool(later)

    # -- the thread -----------------------------------------------------------------------------

    def _start(self) -> None:
        if self._bell < 0:
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        thread = threading.Thread(target=self._run, name="logd-writer", daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        with self._lock:
            if self._thread is None:  # whoever started it was interrupted by a signal just then
                self._thread = threading.current_thread()
            elif not self.is_current:
                return
            try:
                while not self._ended:
                    self._turn(None)
            except Exception as error:
                self._job.crashed(error)
                self.wake_all()
                raise

    def _turn(self, longest_s: float | None) -> None:
        self._asked = False
        pause_s = self._job.turn()
        self.wake_all()
        if not self.call_later() and not self._asked and not self._ended:
            self._sleep(pause_s if longest_s is None else min(pause_s, longest_s))

    def _sleep(self, pause_s: float) -> None:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        watched = self._job.watched()
        if watched is not None:
            poll.register(*watched)
        self._wakes_at_s = monotonic() + pause_s
        self.unlocked(partial(poll.poll, pause_s * 1000 + 1))
        self._wakes_at_s = 0.0
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass


def _call_all(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        try:
            call()
        except Exception:  # noqa: BLE001  (it is the program's own)
            _log.exception("a callback of a logd writer failed; the writer goes on")
