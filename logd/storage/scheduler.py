"""What storage needs of an event loop, so that it imports none and tests can replace it.

All callbacks run on the thread of the event loop. Blocking work runs on other threads; a
`BackgroundJob` makes sure that one owner never has two pieces of it running at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Done = Callable[[Any, BaseException | None], None]  # receives the result or the error


class Timer(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    def soon(self, call: Callable[[], None]) -> None: ...
    def later(self, delay_s: float, call: Callable[[], None]) -> Timer: ...
    def offload(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work` on a disk thread, then call `done` on the event loop."""

    def offload_cpu(self, work: Callable[[], Any], done: Done) -> None:
        """The same on the threads for computations, which never delay a sync."""

    def offload_hook(self, work: Callable[[], Any], done: Done) -> None:
        """The same on the threads for delete hooks, which may take minutes."""

    def now_ms(self) -> int: ...
    def monotonic_s(self) -> float: ...
    def fatal(self, reason: str) -> None:
        """Stop the daemon: nothing may be acknowledged any more."""


class BackgroundJob:
    """Blocking work on another thread, one piece at a time. `ended` is called after each."""

    def __init__(self, scheduler: Scheduler, ended: Callable[[], None]) -> None:
        self._scheduler, self._ended = scheduler, ended
        self.is_running = False

    def start(self, work: Callable[[], Any], done: Done) -> None:
        """The caller has checked that no job is running."""

        def finish(result: Any, error: BaseException | None) -> None:
            try:
                done(result, error)
            finally:
                self.is_running = False
                self._ended()

        self.is_running = True
        self._scheduler.offload(work, finish)

    def start_last(self, work: Callable[[], Any], done: Done) -> None:
        """Start a job after which no other can start."""
        self.is_running = True
        self._scheduler.offload(work, done)
