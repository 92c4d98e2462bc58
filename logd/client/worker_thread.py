"""A background thread that runs a job when it is due, and sleeps otherwise.

Everything runs with the owner's lock held, except sleeping, waiting for the network (`unlocked`)
and the program's callbacks. The thread starts when it is first needed. The job decides what is due
and which descriptor to watch; this module knows nothing about batches.
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

_NESTED_S = 0.05  # the longest sleep when a callback waits for its own thread
_log = logging.getLogger("logd.writer")


class Job(Protocol):
    """All methods are called with the lock held."""

    def turn(self) -> float:
        """Do what is due now; returns after how many seconds to call again at the latest."""

    def watched(self) -> tuple[int, int] | None:
        """The descriptor to wake up for, and its events."""

    def take_callbacks(self) -> list[Callable[[], object]]:
        """What to call without the lock."""

    def crashed(self, error: Exception) -> None:
        """The thread ends because of a bug."""


class WorkerThread:
    def __init__(self, lock: threading.Lock, job: Job) -> None:
        self._lock, self._job = lock, job
        self._waiters: list[threading.Lock] = []  # one for each waiting thread
        self._thread: threading.Thread | None = None
        self._eventfd = -1
        self._wakes_at_s = 0.0  # while it sleeps
        self._is_turn_requested = False  # while it did not sleep
        self._is_ended = False

    @property
    def is_current(self) -> bool:
        """Is this the worker thread, in a callback or in a turn?"""
        return self._thread is not None and threading.get_ident() == self._thread.ident

    def request_turn(self, within_s: float) -> None:
        """Start the thread if needed, and make sure that its next turn starts in time."""
        if self._thread is None:
            self._start()
        elif not self._wakes_at_s:
            self._is_turn_requested = self._is_turn_requested or not self.is_current
        elif self._wakes_at_s > monotonic() + within_s:
            self._wakes_at_s = 0.0
            os.eventfd_write(self._eventfd, 1)

    def wait(self, timeout_s: float | None) -> None:
        """Until the end of a turn or of this time; the caller checks what has changed."""
        if self.is_current:  # in a callback: no other thread would run the turn
            self._turn(_NESTED_S if timeout_s is None else min(timeout_s, _NESTED_S))
            return
        self.request_turn(math.inf)  # only starts the thread: what is due is known
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        timeout_s = -1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        self.unlocked(partial(waiter.acquire, timeout=timeout_s))

    def wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()

    def end(self) -> None:
        """Stop the thread and wait until it has ended. The lock is released meanwhile."""
        if self._is_ended:
            return
        self._is_ended = True
        if self._thread is not None and not self.is_current:
            os.eventfd_write(self._eventfd, 1)
            self.unlocked(self._thread.join)
        self.run_callbacks()
        self.wake_waiters()
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor. A forked child, which has no such thread, closes its copy."""
        if self._eventfd >= 0:
            eventfd, self._eventfd = self._eventfd, -1
            os.close(eventfd)

    def unlocked(self, call: Callable[[], T]) -> T:
        """Call without the lock. Not a context manager: a signal in one would break the lock."""
        try:
            self._lock.release()
            return call()
        finally:
            self._lock.acquire()

    def run_callbacks(self) -> bool:
        """Run the callbacks that are due; returns whether there were any."""
        callbacks = self._job.take_callbacks()
        if callbacks:
            self.unlocked(partial(_call_all, callbacks))
        return bool(callbacks)

    # -- the thread -----------------------------------------------------------------------------

    def _start(self) -> None:
        if self._eventfd < 0:
            self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        thread = threading.Thread(target=self._run, name="logd-writer", daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        with self._lock:
            if self._thread is None:  # a signal interrupted `_start` just before the assignment
                self._thread = threading.current_thread()
            elif not self.is_current:
                return
            try:
                while not self._is_ended:
                    self._turn(None)
            except Exception as error:
                self._job.crashed(error)
                self.wake_waiters()
                raise

    def _turn(self, longest_s: float | None) -> None:
        self._is_turn_requested = False
        pause_s = self._job.turn()
        self.wake_waiters()
        if not self.run_callbacks() and not self._is_turn_requested and not self._is_ended:
            self._sleep(pause_s if longest_s is None else min(pause_s, longest_s))

    def _sleep(self, pause_s: float) -> None:
        poll = select.poll()
        poll.register(self._eventfd, select.POLLIN)
        watched = self._job.watched()
        if watched is not None:
            poll.register(*watched)
        self._wakes_at_s = monotonic() + pause_s
        self.unlocked(partial(poll.poll, pause_s * 1000 + 1))
        self._wakes_at_s = 0.0
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            pass


def _call_all(callbacks: list[Callable[[], object]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:  # noqa: BLE001  (it is the program's own)
            _log.exception("a callback of a logd writer raised an exception; the writer continues")
