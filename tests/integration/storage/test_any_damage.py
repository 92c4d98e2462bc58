"""Any damage at all, several at once: whatever was done to the files, these hold.

- A start and a check come back with an answer; nothing else escapes.
- No message is ever accepted by a client that was not written at that offset.
- Without damage reported nothing below the checkpoint is gone; with it no log file was changed.
- A check covers every batch that is not as it was written.
- Accepting the loss makes it sound, and no offset below the checkpoint is given out again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from logd.errors import LogdError
from logd.offline import integrity
from logd.topic import Topic
from tests.integration.storage.promises import is_bad
from tests.integration.storage.small_log import Files, State, read_files
from tests.support.byte_sweep import flip, leave_out_syncs
from tests.support.long_run import LONG
from tests.support.repair_outcomes import accepted, open_topic, read
from tests.support.topic_loop import Loop, batch_of, new_topic, push


class Blow(NamedTuple):
    """Something done to one file, at a place given as a fraction of its size."""

    suffix: str
    number: int
    what: str
    at: float
    size: int
    seed: int

    def hit(self, files: Files) -> None:
        names = sorted(name for name in files if name.endswith(self.suffix))
        if not names:
            return
        name = names[self.number % len(names)]
        data = files[name]
        position = int(self.at * len(data))
        before, hit, behind = _split(data, position, self.size)
        random = bytes((self.seed * 31 + i * 17) % 256 for i in range(self.size))
        changed = {
            "flip": flip(data, position, self.seed % 8) if hit else data,
            "cut": before,
            "zeros": before + bytes(len(hit)) + behind,
            "garbage": before + random[: len(hit)] + behind,
            "lost": before + behind,
            "inserted": before + random + hit + behind,
            "doubled": before + hit + hit + behind,
            "appended": data + random,
            "moved": before + behind + hit,
        }
        if self.what == "removed":
            del files[name]
        else:
            files[name] = changed[self.what]


def _split(data: bytes, position: int, size: int) -> tuple[bytes, bytes, bytes]:
    return data[:position], data[position : position + size], data[position + size :]


BLOWS = some.builds(
    Blow,
    some.sampled_from([".log", ".log", ".log", ".index", ".ids", "checkpoint", "meta.json"]),
    some.integers(0, 2),
    some.sampled_from(["flip", "flip", "cut", "zeros", "garbage", "lost", "inserted", "doubled",
                       "appended", "moved", "removed"]),
    some.floats(0, 0.9999),
    some.sampled_from([1, 2, 32, 77, 600, 5000]),
    some.integers(0, 255),
)  # fmt: skip
STATES = ["clean", "killed", "ahead", "rolled"]


def test_whatever_was_done_to_the_files(states: dict[str, State], tmp_path: Path) -> None:
    directory = tmp_path / "app"

    @settings(max_examples=5000 if LONG else 150, database=None, derandomize=not LONG)
    @given(name=some.sampled_from(STATES), blows=some.lists(BLOWS, min_size=1, max_size=4))
    def one(name: str, blows: list[Blow]) -> None:
        files = dict(states[name].files)
        for blow in blows:
            blow.hit(files)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for file, data in files.items():
            (directory / file).write_bytes(data)
        look(directory, states[name], files)

    with pytest.MonkeyPatch.context() as patch:
        leave_out_syncs(patch)
        one()


def look(directory: Path, state: State, files: Files) -> None:
    has_checkpoint = files.get("checkpoint") == state.files["checkpoint"]
    durable = state.checkpoint.next if has_checkpoint else 0
    report = integrity.check(directory).report
    assert read_files(directory) == files, "a check changed something"
    if has_checkpoint:
        assert_check_covers(state, files, [(d.first, d.next) for d in report.damages])

    topic, opened = open_topic(directory)
    after = read_files(directory)
    changed = [n for n in files if n.endswith(".log") and after.get(n) != files[n]]
    if opened.damages:
        assert not changed, f"a faulted topic's logs were changed: {changed}"
    else:
        assert opened.state.next >= durable
        for log in changed:
            assert files[log].startswith(after[log]), f"{log} was not only cut"
    assert_only_truth(topic, state)
    del topic, opened

    if integrity.check(directory).report.damages:
        integrity.repair(directory, accept_loss=True)
    last = integrity.check(directory).report
    assert not last.damages, f"after accepting: {last.damages}"
    loop = Loop()
    topic = new_topic(directory, loop)
    assert topic.open().damages == ()
    next_ = topic.readable.next
    assert next_ >= durable, "an offset would be used twice"
    assert_only_truth(topic, state)
    loop.time_s += 10**6
    pushing = push(topic, loop, batch_of([b"new"]))
    assert (pushing.error, pushing.offset) == (None, next_)


def assert_check_covers(state: State, files: Files, damages: list[tuple[int, int]]) -> None:
    """Below the checkpoint each batch is as it was written, or named."""
    for part in state.parts:
        for batch in part.batches:
            is_durable = part is not state.active or batch.next <= state.checkpoint.next
            if is_durable and is_bad(batch, part, files.get(part.name, b""), 0):
                offsets = range(batch.first, batch.next)
                assert all(any(f <= o < n for f, n in damages) for o in offsets), batch[:2]


def assert_only_truth(topic: Topic, state: State) -> None:
    """A read from every batch on; behind the end of the model nothing is known."""
    truth = {
        offset: message
        for batch in state.batches
        for offset, message in enumerate(batch.messages, batch.first)
    }
    for batch in state.batches:
        try:
            messages, _ = accepted(read(topic, batch.first, 1))
        except LogdError:
            continue
        assert messages.items() <= truth.items(), f"READ {batch.first} answers something else"
