"""A repair and a recovery, killed at each of their steps and run again: the same log in the end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from logd.offline import integrity
from logd.storage import recovery
from tests.integration.storage.corruptions import (
    BESIDE,
    BROKEN,
    MISPLACED,
    Corruption,
    both,
    cut,
    flip_body,
)
from tests.integration.storage.small_log import Files, State, read_files
from tests.support.byte_sweep import Copy
from tests.support.killed_calls import is_killed
from tests.support.long_run import LONG

pytestmark = pytest.mark.usefixtures("no_syncs")


def logs_of(topic_dir: Path) -> Files:
    return {name: data for name, data in read_files(topic_dir).items() if name.endswith(".log")}


def run_to_the_end_though_killed(
    copy: Copy, files: Files, work: Callable[[], object], patch: pytest.MonkeyPatch, how: str
) -> int:
    """Kill `work` at its first call, run it again; at its second … The logs must be the same."""
    copy.put(files)
    work()
    whole = logs_of(copy.directory)
    next_ = recovery.open_topic("app", copy.directory).state.next
    for step in count(1):
        copy.put(files)
        if not is_killed(work, step, how, patch):
            return step
        work()
        assert logs_of(copy.directory) == whole, f"killed {how} step {step}"
        opened = recovery.open_topic("app", copy.directory)
        assert opened.damages == (), f"killed {how} step {step}"
        assert opened.state.next == next_, f"killed {how} step {step}"
    raise AssertionError


TORN = Corruption("a torn tail", cut(2, 6, 70), lambda state: [])
TORN_AND_DAMAGED = Corruption(
    "a torn tail and damage", both(flip_body(0, 3), cut(2, 6, 70)), lambda state: [(7, 22)]
)
SOME = ("the first file is missing", "the middle file is missing", "the newest file is missing",
        "all files are missing", "a sealed file is garbage", "two places of one file",
        "a sealed file and the newest", "no checkpoint",
        "neither meta file nor checkpoint")  # fmt: skip
TO_KILL = [*(c for c in (*MISPLACED, *BROKEN, *BESIDE) if LONG or c.name in SOME), TORN_AND_DAMAGED]


@pytest.mark.parametrize("name", ["killed"])
@pytest.mark.parametrize("how", ["before", "within", "behind"])
@pytest.mark.parametrize("corruption", TO_KILL, ids=repr)
def test_accepting_loss_killed_anywhere_ends_in_the_same_log(
    tmp_path: Path,
    state: State,
    corruption: Corruption,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = Copy(tmp_path / "app", state)
    corruption.corrupt(copy.directory, state)
    files = read_files(copy.directory)

    def work() -> None:
        integrity.repair(copy.directory, accept_loss=True)

    steps = run_to_the_end_though_killed(copy, files, work, monkeypatch, how)
    assert steps > 3


@pytest.mark.parametrize("name", ["killed", "ahead"])
@pytest.mark.parametrize("how", ["before", "within", "behind"])
@pytest.mark.parametrize("start", [False, True], ids=["repair", "start"])
def test_cutting_a_torn_tail_killed_anywhere_ends_in_the_same_log(
    tmp_path: Path, state: State, how: str, start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Copy(tmp_path / "app", state)
    TORN.corrupt(copy.directory, state)
    files = read_files(copy.directory)
    torn = files[state.active.name][state.active.batches[6].position :]

    def work() -> None:
        if start:
            recovery.open_topic("app", copy.directory)
        else:
            integrity.repair(copy.directory, accept_loss=False)
        copies = [d for n, d in read_files(copy.directory).items() if "quarantine" in n]
        assert copies == [torn]

    steps = run_to_the_end_though_killed(copy, files, work, monkeypatch, how)
    assert steps > 3
