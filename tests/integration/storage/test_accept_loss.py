"""The only way on from damage: `repair --accept-loss` puts gaps in its place.

One driver for every way to break the log: it is broken, a repair alone leaves it so, accepting the
loss makes it sound; what was not lost is read as before, what was is a gap, and writing goes on
where no offset was used before.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from logd import repair
from logd.batch import GAP, ScannedBatch, split_body
from logd.offline import integrity
from logd.storage import recovery
from logd.storage.disk import File
from logd.topic import Topic
from logd.wire.read_state import check as check_reply
from logd.wire.requests import At
from tests.integration.storage.corruptions import (
    BESIDE,
    BROKEN,
    MISPLACED,
    Corruption,
    Offsets,
    flip_body,
)
from tests.integration.storage.small_log import Files, State, read_files
from tests.support.byte_sweep import Copy
from tests.support.repair_outcomes import open_topic, read
from tests.support.topic_loop import Loop, batch_of, close, new_topic, push

ALL = [*MISPLACED, *BROKEN, *BESIDE]
STATES = ["clean", "killed"]
pytestmark = pytest.mark.usefixtures("no_syncs")


def batches_of(topic: Topic) -> list[ScannedBatch]:
    """Everything that can be read, from first to next."""
    found: list[ScannedBatch] = []
    while topic.readable.next > (at := found[-1].header.next if found else topic.readable.first):
        found += list(check_reply(read(topic, at)))
    return found


def gaps_in(found: list[ScannedBatch]) -> list[Offsets]:
    return [(f.header.offset, f.header.next) for f in found if f.header.enc == GAP]


def messages_in(found: list[ScannedBatch]) -> dict[int, bytes]:
    return {
        offset: message
        for f in found
        if f.header.enc != GAP
        for offset, message in enumerate(split_body(f.body, f.header.enc), f.header.offset)
    }


def written(state: State) -> dict[int, bytes]:
    return {
        offset: message
        for batch in state.batches
        for offset, message in enumerate(batch.messages, batch.first)
    }


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("corruption", ALL, ids=repr)
def test_without_accepting_it_damage_is_left_as_it_is(
    topic_dir: Path, state: State, corruption: Corruption
) -> None:
    corruption.corrupt(topic_dir, state)
    before = read_files(topic_dir)
    report = integrity.repair(topic_dir, accept_loss=False)
    assert report.damages
    assert not report.filled
    integrity.repair(topic_dir, accept_loss=True, dry_run=True)
    assert read_files(topic_dir) == before


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("corruption", ALL, ids=repr)
def test_break_accept_read_append_read_again(
    topic_dir: Path, state: State, corruption: Corruption
) -> None:
    corruption.corrupt(topic_dir, state)
    before = read_files(topic_dir)
    lost = [(first, next_) for first, next_ in corruption.lost(state) if next_ > first]
    report = integrity.repair(topic_dir, accept_loss=True)
    assert report.damages == []
    assert report.filled
    assert is_sound(topic_dir)

    topic, opened = open_topic(topic_dir)
    assert opened.damages == ()
    assert topic.readable.next >= state.checkpoint.next, "offsets would be used twice"
    found = batches_of(topic)
    assert joined(gaps_in(found)) == joined(lost)
    truth = {
        offset: message
        for offset, message in written(state).items()
        if offset < topic.readable.next
        and not any(first <= offset < next_ for first, next_ in lost)
    }
    assert messages_in(found) == truth
    assert_times_never_go_back(topic, found)
    assert_copies_hold_what_was_replaced(before, topic_dir)

    next_, loop = topic.readable.next, Loop()
    topic = new_topic(topic_dir, loop)
    topic.open()
    loop.time_s += 1000
    assert push(topic, loop, batch_of([b"one more", b"and one"])).offset == next_
    assert messages_in(batches_of(topic)) == {**truth, next_: b"one more", next_ + 1: b"and one"}
    close(topic, loop)
    topic, opened = open_topic(topic_dir)
    assert (opened.clean, opened.damages) == (True, ())
    assert messages_in(batches_of(topic)) == {**truth, next_: b"one more", next_ + 1: b"and one"}
    assert is_sound(topic_dir)


def is_sound(topic_dir: Path) -> bool:
    report = integrity.check(topic_dir).report
    return not report.damages and not report.cut_bytes


def joined(ranges: list[Offsets]) -> list[Offsets]:
    """Without the seams between ranges that touch."""
    result: list[Offsets] = []
    for first, next_ in sorted(ranges):
        if result and result[-1][1] == first:
            result[-1] = (result[-1][0], next_)
        else:
            result.append((first, next_))
    return result


def assert_times_never_go_back(topic: Topic, found: list[ScannedBatch]) -> None:
    """And so a look-up by time finds the first batch that is not older."""
    times = [f.header.time_ms for f in found]
    assert all(earlier <= later for earlier, later in pairwise(times)), times
    for time_ms in {*times, times[-1] + 1}:
        at = next(
            (f.header.offset for f in found if f.header.time_ms >= time_ms), topic.readable.next
        )
        assert topic.readable.resolve(At(time_ms)) == at


def assert_copies_hold_what_was_replaced(before: Files, topic_dir: Path) -> None:
    """Every byte that is not in the log any more is in `quarantine/`."""
    for name, data in read_files(topic_dir).items():
        if name.startswith("quarantine/"):
            file, position, end = name.removeprefix("quarantine/").split("-")
            assert data == before[f"{file}.log"][int(position) : int(end)]
    logs = {name: data for name, data in read_files(topic_dir).items() if name.endswith(".log")}
    copies = [data for name, data in read_files(topic_dir).items() if "quarantine" in name]
    for name, data in before.items():
        if name.endswith(".log"):
            left = sum(map(len, copies)) + sum(map(len, logs.values()))
            assert left >= len(data), f"bytes of {name} are nowhere"


def test_what_retention_had_let_go_does_not_come_back(tmp_path: Path, clean: State) -> None:
    """Killed between the checkpoint that says so and the removal of the file; then damaged."""
    topic_dir = Copy(tmp_path / "app", clean).directory
    checkpoint = recovery.open_topic("app", topic_dir).checkpoint
    assert checkpoint.state is not None
    checkpoint.write(replace(checkpoint.state, first=44))
    flip_body(1, 2)(topic_dir, clean)
    integrity.repair(topic_dir, accept_loss=True)
    topic, opened = open_topic(topic_dir)
    assert opened.damages == ()
    assert topic.readable.first == 44


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_without_room_for_the_new_file_nothing_of_it_is_left(
    tmp_path: Path, clean: State, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it would keep the disk full that is to be repaired."""
    topic_dir = Copy(tmp_path / "app", clean).directory
    flip_body(0, 8)(topic_dir, clean)
    before, copied = read_files(topic_dir), repair._copy

    def refuse(file: File, position: int, end: int, target: File) -> None:
        copied(file, position, end, target)
        if position == 0:
            raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(repair, "_copy", refuse)
        with pytest.raises(OSError):
            integrity.repair(topic_dir, accept_loss=True)
    after = read_files(topic_dir)
    assert {name: data for name, data in after.items() if "quarantine" not in name} == before
