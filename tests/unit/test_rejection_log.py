"""Which rejected requests are in the log, with a clock of the test's own."""

from __future__ import annotations

import logging

import pytest

from logd.access.rejection_log import MAX_KINDS, MAX_LINES, PERIOD_S, RejectionLog
from logd.errors import BadTopic, LogdError, NotFound, UnknownCommand
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rejections(clock: Clock, caplog: pytest.LogCaptureFixture) -> RejectionLog:
    caplog.set_level(logging.INFO, "logd")
    return RejectionLog(clock)


def pass_time(rejections: RejectionLog, clock: Clock, seconds: float = PERIOD_S) -> None:
    clock.now_s += seconds
    rejections.report()


def test_the_first_at_once_the_others_as_a_number(
    rejections: RejectionLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(38):
        rejections.note(BadTopic(f"wrong {n}"), "10.0.0.1")
    rejections.note(BadTopic("wrong"), "10.0.0.2")
    rejections.note(LogdError("fault"), "10.0.0.1", 2)
    pass_time(rejections, clock, PERIOD_S - 1)
    assert caplog.messages == [
        "rejected bad-topic from 10.0.0.1: wrong 0",
        "rejected bad-topic from 10.0.0.2: wrong",
        "rejected internal from 10.0.0.1 (2 times at once): fault",
    ]
    caplog.clear()
    pass_time(rejections, clock, 1)
    repeated = "rejected bad-topic from 10.0.0.1 (37 times in the last 60 s): wrong 37"
    assert caplog.messages == [repeated]
    pass_time(rejections, clock)
    pass_time(rejections, clock)
    assert caplog.messages == [repeated]
    rejections.note(BadTopic("again"), "10.0.0.1")
    assert caplog.messages[1:] == ["rejected bad-topic from 10.0.0.1: again"]


def test_levels_and_texts(rejections: RejectionLog, caplog: pytest.LogCaptureFixture) -> None:
    rejections.note(NotFound("no topic x"), "a")
    rejections.note(UnknownCommand("no command 'secret'", log_text=""), "")
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "rejected not-found from a: no topic x"),
        ("WARNING", "rejected unknown-command from unknown"),
    ]


def test_memory_and_log_are_bounded(
    rejections: RejectionLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(10 * MAX_KINDS):
        rejections.note(BadTopic("wrong"), f"client {n}")
    assert len(rejections._kinds) == MAX_KINDS
    assert len(caplog.messages) == MAX_LINES
    pass_time(rejections, clock)
    left_out = 10 * MAX_KINDS - MAX_LINES
    assert caplog.messages[MAX_LINES:] == [f"rejected {left_out} more requests in the last 60 s"]
    assert not rejections._kinds
