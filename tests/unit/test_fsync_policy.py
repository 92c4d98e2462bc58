"""When a sync is due and when pushes must wait for it: tables, no clock, no disk."""

from __future__ import annotations

import pytest

from logd.storage.fsync_policy import CommitDelay, FsyncPolicy

NEVER = FsyncPolicy("never")
INTERVAL = FsyncPolicy("interval", interval_s=1.0)
SHORT = FsyncPolicy("interval", interval_s=0.25)
BATCHES = FsyncPolicy("batches", batches=100)
ALWAYS = FsyncPolicy("always")


@pytest.mark.parametrize(
    ("policy", "unsynced", "oldest_s", "due_in_s", "must_wait"),
    [
        (NEVER, 0, 0.0, None, False),
        (NEVER, 1_000_000, 1000.0, None, False),
        (INTERVAL, 0, 0.0, None, False),
        (INTERVAL, 0, 99.0, None, False),
        (INTERVAL, 1, 0.0, 1.0, False),
        (INTERVAL, 1, 0.75, 0.25, False),
        (INTERVAL, 1_000_000, 0.75, 0.25, False),
        (INTERVAL, 1, 1.0, 0.0, False),
        (INTERVAL, 1, 1.99, 0.0, False),
        (INTERVAL, 1, 2.0, 0.0, True),
        (SHORT, 1, 0.0, 0.25, False),
        (SHORT, 1, 0.5, 0.0, True),
        (BATCHES, 0, 0.0, None, False),
        (BATCHES, 0, 99.0, None, False),
        (BATCHES, 1, 0.0, 1.0, False),
        (BATCHES, 99, 0.25, 0.75, False),
        (BATCHES, 99, 5.0, 0.0, False),
        (BATCHES, 100, 0.0, 0.0, False),
        (BATCHES, 199, 0.0, 0.0, False),
        (BATCHES, 200, 0.0, 0.0, True),
        (BATCHES, 201, 0.0, 0.0, True),
        (ALWAYS, 0, 0.0, None, False),
        (ALWAYS, 1, 0.0, 0.0, False),
        (ALWAYS, 1_000_000, 99.0, 0.0, False),
    ],
)
def test_policies(
    policy: FsyncPolicy, unsynced: int, oldest_s: float, due_in_s: float | None, must_wait: bool
) -> None:
    assert policy.due_in_s(unsynced, oldest_s) == due_in_s
    assert policy.must_wait(unsynced, oldest_s) is must_wait


@pytest.mark.parametrize(
    ("policy", "waits"), [(NEVER, False), (INTERVAL, False), (BATCHES, False), (ALWAYS, True)]
)
def test_only_always_answers_after_the_sync(policy: FsyncPolicy, waits: bool) -> None:
    assert policy.acks_wait is waits


@pytest.mark.parametrize(
    ("unsynced", "room"), [(0, 200), (1, 199), (150, 50), (199, 1), (200, 1), (500, 1)]
)
def test_room_for_more_batches(unsynced: int, room: int) -> None:
    assert BATCHES.room(unsynced) == room
    for policy in (NEVER, INTERVAL, ALWAYS):
        assert policy.room(unsynced) >= 1 << 20


# -- delay ----------------------------------------------------------------------------------


def test_the_first_sync_waits_for_nobody() -> None:
    delay = CommitDelay()
    assert delay.wanted(now=0.0) == 1
    assert delay.wanted(now=1000.0) == 1
    assert delay.max_s() == 0


@pytest.mark.parametrize(
    ("acked", "waiting", "started_at", "ended_at", "now", "wanted", "max_s"),
    [
        (16, 0, 10.0, 10.001, 10.001, 16, 0.0005),
        (16, 0, 10.0, 10.001, 10.0029, 16, 0.0005),
        (16, 0, 10.0, 10.001, 10.004, 1, 0.0005),  # they have moved on
        (10, 6, 10.0, 10.001, 10.001, 16, 0.0005),  # those that came during the sync count
        (1, 0, 10.0, 10.001, 10.001, 1, 0.0005),
        (16, 0, 10.0, 10.5, 10.5, 16, 0.001),  # a slow disk: never longer than a millisecond
        (16, 0, 10.0, 10.0, 10.0, 16, 0.0),  # a disk that takes no time
        (16, 0, 10.0, 10.0, 10.001, 1, 0.0),
    ],
)
def test_a_sync_waits_for_those_it_acked_last(
    acked: int, waiting: int, started_at: float, ended_at: float, now: float,
    wanted: int, max_s: float,
) -> None:  # fmt: skip
    delay = CommitDelay()
    delay.synced(acked, waiting, started_at, ended_at)
    assert delay.wanted(now) == wanted
    assert delay.max_s() == pytest.approx(max_s)
