"""A task of the housekeeping that fails is seen, tried again, and in no other's way."""

from __future__ import annotations

import errno
import logging

import pytest

from logd.storage.periodic_tasks import PeriodicTasks, for_each
from tests.support.clock import Clock


def test_a_failing_task(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "logd")
    clock, runs, errors = Clock(), list[str](), list[Exception]()

    def fails() -> None:
        if errors:
            raise errors[0]

    housekeeping = PeriodicTasks(clock)
    housekeeping.add("first", fails)
    housekeeping.add("second", lambda: runs.append("second"))
    failing = housekeeping.tasks["first"]
    housekeeping.run()
    assert housekeeping.problems() == []
    errors.append(OSError(errno.EIO, "Input/output error", "/secret/path"))
    for _ in range(130):
        clock.now_s += 1
        housekeeping.run()
    assert len(runs) == 131
    assert failing.failures == 130
    assert housekeeping.since_success_s(failing) == 130
    problem = "housekeeping: first has failed for 130 s: Input/output error"
    assert housekeeping.problems() == [problem]
    assert len(caplog.messages) == 3  # once per minute
    assert "/secret/path" in caplog.messages[0]
    errors.clear()
    housekeeping.run()
    assert housekeeping.problems() == []
    assert housekeeping.since_success_s(failing) == 0
    assert caplog.messages[3:] == ["housekeeping: first works again after 130 failures"]


def test_each_item_has_its_turn() -> None:
    seen: list[int] = []

    def run(item: int) -> None:
        seen.append(item)
        if item in (1, 3):
            raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        for_each([1, 2, 3, 4], run)
    assert seen == [1, 2, 3, 4]
