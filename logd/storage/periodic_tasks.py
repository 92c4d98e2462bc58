"""Tasks that run once per second: of the store, and of the listeners.

A task that fails is logged, counted and run again a second later; other tasks are not affected.
While it fails, `/readyz` and `/metrics` report it. Knows nothing of the tasks, and has no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from logd.wire.text import counted

T = TypeVar("T")
_LOG_EVERY_S = 60.0
log = logging.getLogger("logd")


class PeriodicTask:
    def __init__(self, name: str, run: Callable[[], object], now_s: float) -> None:
        self.name, self._run = name, run
        self.failures = 0
        self.succeeded_at_s = now_s
        self._in_a_row = 0
        self._logged_at_s = 0.0
        self._reason = ""

    @property
    def is_failing(self) -> bool:
        return self._in_a_row > 0

    def run(self, now_s: float) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001  other tasks must run
            self._failed(error, now_s)
        else:
            if self.is_failing:
                times = counted(self._in_a_row, "failure")
                log.info("housekeeping: %s works again after %s", self.name, times)
            self._in_a_row, self.succeeded_at_s = 0, now_s

    def _failed(self, error: Exception, now_s: float) -> None:
        self.failures += 1
        self._in_a_row += 1
        # Clients see the reason, so it must not contain a path.
        self._reason = getattr(error, "strerror", None) or type(error).__name__
        if self._in_a_row == 1 or now_s - self._logged_at_s >= _LOG_EVERY_S:
            self._logged_at_s = now_s
            times = counted(self._in_a_row, "time")
            log.error(
                "housekeeping: %s failed %s in a row: %s; trying again every second",
                self.name, times, error, exc_info=None if isinstance(error, OSError) else error,
            )  # fmt: skip

    def problem(self, now_s: float) -> str:
        since_s = now_s - self.succeeded_at_s
        return f"housekeeping: {self.name} has failed for {since_s:.0f} s: {self._reason}"


class PeriodicTasks:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.tasks: dict[str, PeriodicTask] = {}
        self.unexpected_errors = 0  # in callbacks of the event loop

    def add(self, name: str, run: Callable[[], object]) -> None:
        self.tasks[name] = PeriodicTask(name, run, self._now_s())

    def run(self) -> None:
        """Run each task once."""
        for name in self.tasks:
            self.run_task(name)

    def run_task(self, name: str) -> None:
        self.tasks[name].run(self._now_s())

    def problems(self) -> list[str]:
        """A sentence for each task whose last run failed."""
        now_s = self._now_s()
        return [task.problem(now_s) for task in self.tasks.values() if task.is_failing]

    def since_success_s(self, task: PeriodicTask) -> float:
        return self._now_s() - task.succeeded_at_s


def for_each(items: Iterable[T], run: Callable[[T], object]) -> None:
    """Run it for all items even if some fail; then raise the first error."""
    first: Exception | None = None
    for item in items:
        try:
            run(item)
        except Exception as error:  # noqa: BLE001  other items must run
            first = first or error
    if first is not None:
        raise first
