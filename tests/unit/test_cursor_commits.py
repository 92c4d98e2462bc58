"""Commits on their way: one write at a time, who is answered when, and which syncs that takes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from logd.errors import LogdError
from logd.storage import disk
from logd.storage.cursor_commits import TopicCursors
from logd.storage.cursors import CursorFile
from logd.storage.disk import SyncFailed
from logd.storage.fsync_policy import FsyncPolicy
from logd.storage.scheduler import Done, Scheduler


class Stage:
    """The topic and the scheduler of its cursors; jobs run when the test says so."""

    def __init__(self, directory: Path, policy: FsyncPolicy, max_cursors: int = 1000) -> None:
        self.directory = directory
        self.jobs: list[tuple[Callable[[], Any], Done]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.answers: list[tuple[str, str]] = []  # cursor, and OK or the error code
        self.failures: list[BaseException] = []
        self.turns = 0
        self.now_s = 1000.0
        self.cursors = TopicCursors(policy, max_cursors, cast(Scheduler, self), self)

    def offload(self, work: Callable[[], Any], done: Done) -> None:
        self.jobs.append((work, done))

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.timers.append((delay_s, call))

    def now_ms(self) -> int:
        return 5000

    def monotonic_s(self) -> float:
        return self.now_s

    def job_failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def turn_soon(self) -> None:
        self.turns += 1

    def commit(self, name: str, offset: int | None) -> None:
        def answer(error: LogdError | None) -> None:
            self.answers.append((name, error.code if error else "OK"))

        self.cursors.commit(name, offset, answer)

    def run(self) -> None:
        """The job under way; there is never a second one."""
        assert len(self.jobs) == 1
        work, done = self.jobs.pop()
        try:
            work()
        except (OSError, SyncFailed) as error:
            done(None, error)
        else:
            done(None, None)

    def run_all(self) -> None:
        while self.jobs:
            self.run()

    def places(self) -> dict[str, int]:
        return {name: place.offset for name, place in self.cursors.cursors.items()}


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The writes and syncs of files, in order."""
    calls: list[str] = []
    real_write, real_sync = disk.write_at, disk.sync

    def write_at(*arguments: Any) -> None:
        calls.append("write")
        real_write(*arguments)

    def sync(file: disk.File) -> None:
        calls.append("sync")
        real_sync(file)

    monkeypatch.setattr(disk, "write_at", write_at)
    monkeypatch.setattr(disk, "sync", sync)
    return calls


def stage(tmp_path: Path, mode: str = "never", **settings: Any) -> Stage:
    made = Stage(tmp_path, FsyncPolicy(mode, interval_s=1.0, batches=3), **settings)
    for name in ("a", "b", "c"):
        made.commit(name, 0)
    made.run_all()
    made.answers.clear()
    return made


# -- groups ---------------------------------------------------------------------------------------


def test_what_comes_during_a_write_goes_into_the_next_one(
    tmp_path: Path, writes: list[str]
) -> None:
    made = stage(tmp_path)
    writes.clear()
    made.commit("a", 1)
    made.commit("b", 2)
    made.commit("c", 3)
    made.commit("a", 4)
    assert made.answers == []
    assert made.places() == {"a": 0, "b": 0, "c": 0}
    made.run()
    assert made.answers == [("a", "OK")]
    assert made.places() == {"a": 1, "b": 0, "c": 0}
    made.run()
    assert made.answers == [("a", "OK"), ("b", "OK"), ("c", "OK"), ("a", "OK")]
    assert made.places() == {"a": 4, "b": 2, "c": 3}
    assert writes == ["write", "write"]
    assert made.jobs == []
    assert CursorFile.read(tmp_path).saved.cursors == made.cursors.cursors


def test_whoever_commits_again_when_answered_is_in_the_next_group(tmp_path: Path) -> None:
    made = stage(tmp_path)
    made.cursors.commit("a", 1, lambda error: made.commit("a", 2))
    made.commit("b", 1)
    made.run()
    made.run()
    assert made.answers == [("b", "OK"), ("a", "OK")]
    assert made.jobs == []


def test_commits_of_a_group_see_those_before_them(tmp_path: Path) -> None:
    made = stage(tmp_path, max_cursors=4)
    made.commit("a", 1)
    for name, offset in (("b", None), ("b", None), ("d", 1), ("e", 1), ("f", 1), ("e", None)):
        made.commit(name, offset)
    made.run_all()
    refused = [answer for answer in made.answers if answer[1] != "OK"]
    assert refused == [("b", "not-found"), ("f", "topic-limit")]
    assert made.places() == {"a": 1, "c": 0, "d": 1}


def test_a_group_that_is_refused_as_a_whole_writes_nothing(
    tmp_path: Path, writes: list[str]
) -> None:
    made = stage(tmp_path, max_cursors=3)
    writes.clear()
    made.commit("d", 1)
    made.commit("nobody", None)
    assert made.answers == [("d", "topic-limit"), ("nobody", "not-found")]
    assert (made.jobs, writes) == ([], [])


# -- syncs ----------------------------------------------------------------------------------------


def test_with_always_the_sync_comes_before_the_answer(tmp_path: Path, writes: list[str]) -> None:
    made = stage(tmp_path, "always")
    writes.clear()
    made.commit("a", 1)
    work, done = made.jobs.pop()
    work()
    assert writes == ["write", "sync"]
    assert made.answers == []
    assert made.places()["a"] == 0
    done(None, None)
    assert made.answers == [("a", "OK")]
    assert made.jobs == []


@pytest.mark.parametrize("mode", ["never", "interval", "batches"])
def test_in_the_other_modes_it_does_not(tmp_path: Path, writes: list[str], mode: str) -> None:
    made = stage(tmp_path, mode)
    writes.clear()
    made.commit("a", 1)
    made.run()
    assert made.answers == [("a", "OK")]
    assert writes == ["write"]
    assert made.cursors.stats(0)["unsynced_commits"] == 1


def test_with_interval_a_sync_comes_an_interval_after_the_first_move(
    tmp_path: Path, writes: list[str]
) -> None:
    made = stage(tmp_path, "interval")
    assert made.timers == []
    writes.clear()
    made.commit("a", 1)
    made.run()
    made.now_s += 0.4
    made.commit("a", 2)
    made.run()
    [(delay_s, fire)] = made.timers
    assert delay_s == 1.0
    made.now_s += 0.6
    fire()
    made.run()
    assert writes == ["write", "write", "sync"]
    assert made.cursors.stats(0)["unsynced_commits"] == 0


def test_a_sync_that_is_due_goes_before_the_next_write(tmp_path: Path, writes: list[str]) -> None:
    """So that there is never more than one interval and one sync between a commit and the disk."""
    made = stage(tmp_path, "interval")
    writes.clear()
    made.commit("a", 1)
    made.run()
    made.now_s += 1.5
    made.commit("a", 2)
    made.run_all()
    assert writes == ["write", "sync", "write"]


def test_with_batches_a_sync_comes_after_as_many_commits(tmp_path: Path, writes: list[str]) -> None:
    made = stage(tmp_path, "batches")
    writes.clear()
    for offset in range(5):
        made.commit("a", offset)
        made.run_all()
    assert writes == ["write", "write", "write", "sync", "write", "write"]


def test_with_batches_no_more_than_twice_as_many_are_ever_unsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, names = stage(tmp_path, "batches"), [f"n{n}" for n in range(20)]
    for name in names:
        made.commit(name, 0)
        made.run_all()
    made.answers.clear()
    unsynced, most = 0, 0

    def count_lines(_: Any, buffers: list[bytes], position: int) -> None:
        nonlocal unsynced, most
        unsynced += buffers[0].count(b"\n")
        most = max(most, unsynced)

    def synced(_: Any) -> None:
        nonlocal unsynced
        unsynced = 0

    monkeypatch.setattr(disk, "write_at", count_lines)
    monkeypatch.setattr(disk, "sync", synced)
    for offset in range(1, 10):
        for name in names:
            made.commit(name, offset)
        made.run()
    made.run_all()
    assert made.answers == [(name, "OK") for _ in range(1, 10) for name in names]
    assert 3 <= most <= 6


def test_with_never_there_is_none_before_the_stop(tmp_path: Path, writes: list[str]) -> None:
    made = stage(tmp_path)
    writes.clear()
    made.commit("a", 1)
    made.run()
    made.now_s += 10_000
    assert (made.timers, made.jobs) == ([], [])
    made.cursors.close()
    assert made.cursors.is_busy
    assert made.turns == 0
    made.run()
    assert writes == ["write", "sync"]
    assert made.turns == 1
    assert not made.cursors.is_busy


# -- errors, and the stop -------------------------------------------------------------------------


def test_without_room_everybody_of_the_group_is_told_and_the_old_places_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_at", full)
        made.commit("a", 1)
        made.commit("b", 1)
        made.commit("new", 1)
        made.run_all()
    assert made.answers == [("a", "no-space"), ("b", "no-space"), ("new", "no-space")]
    assert made.places() == {"a": 0, "b": 0, "c": 0}
    made.commit("a", 2)
    made.run_all()
    assert made.places() == {"a": 2, "b": 0, "c": 0}
    assert CursorFile.read(tmp_path).saved.cursors == made.cursors.cursors


@pytest.mark.parametrize("name", ["a", "new"])
def test_a_sync_that_fails_is_told_to_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It ends the daemon; no answer may say that all went well."""
    made = stage(tmp_path, "always")

    def fails(_: Any) -> None:
        raise SyncFailed("fdatasync: broken")

    monkeypatch.setattr(disk, "sync", fails)
    made.commit(name, 1)
    made.run()
    assert [str(error) for error in made.failures] == ["fdatasync: broken"]
    assert made.answers == [(name, "io")]


def test_a_stop_finishes_what_there_is_and_takes_no_more(tmp_path: Path) -> None:
    made = stage(tmp_path)
    made.commit("a", 1)
    made.commit("b", 2)
    made.cursors.close()
    made.commit("c", 3)
    assert made.answers == [("c", "shutting-down")]
    made.run_all()
    assert made.answers == [("c", "shutting-down"), ("a", "OK"), ("b", "OK")]
    assert made.turns == 1
    assert CursorFile.read(tmp_path).saved.cursors == made.cursors.cursors


def test_stats_show_a_hundred_and_count_the_rest(tmp_path: Path) -> None:
    made = Stage(tmp_path, FsyncPolicy("never"))
    for n in range(130):
        made.commit(f"c{n:03}", n)
    made.run_all()
    stats = made.cursors.stats(50)
    shown = [name for name in stats if name.startswith("cursor.")]
    assert shown == [f"cursor.c{n:03}" for n in range(100)]
    assert stats["cursor.c007"] == "7 lag=43"
    assert stats["cursor.c099"] == "99 lag=0"
    assert (stats["cursors"], stats["cursors_not_shown"]) == (130, 30)
