"""Two slots, written in turn: what a torn write costs, and what it never costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from xxhash import xxh3_64_hexdigest

from logd.storage import disk
from logd.storage.checkpoint import SLOT_BYTES, Checkpoint, CheckpointState

FIRST = CheckpointState(first=0, partition=0, position=100, epoch=1, began=0, clean=False)
SECOND = CheckpointState(first=5, partition=50, position=200, epoch=2, began=7, clean=True)


def reopened(path: Path) -> CheckpointState | None:
    return Checkpoint(path).state


def fields(state: CheckpointState | None) -> tuple[int, int, int, int, int, bool]:
    assert state is not None
    return state.first, state.partition, state.position, state.epoch, state.began, state.clean


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def test_golden_bytes(path: Path) -> None:
    """One readable line, then zeros, in a file of two slots."""
    Checkpoint.create(
        path, CheckpointState(first=3, partition=4, position=5, epoch=6, began=7, clean=True)
    )
    line, _, rest = path.read_bytes().partition(b"\n")
    word, sequence, *pairs, sum_ = line.split(b" ")
    assert (word, sequence) == (b"checkpoint", b"0")
    said = {b"first=3", b"partition=4", b"position=5", b"epoch=6", b"began=7", b"clean=1"}
    assert said <= set(pairs)
    assert sum_.decode() == xxh3_64_hexdigest(line.removesuffix(sum_))
    assert rest == bytes(2 * SLOT_BYTES - len(line) - 1)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_written_comes_back(path: Path) -> None:
    checkpoint = Checkpoint.create(path, FIRST)
    assert fields(reopened(path)) == fields(FIRST)
    for state in (SECOND, FIRST, SECOND, SECOND):
        checkpoint.write(state)
        assert fields(checkpoint.state) == fields(reopened(path)) == fields(state)


def test_slots_take_turns_and_the_sequence_grows(path: Path) -> None:
    checkpoint = Checkpoint.create(path, FIRST)
    for step in range(1, 6):
        before = path.read_bytes()
        checkpoint.write(CheckpointState(position=step))
        after = path.read_bytes()
        kept = slice(0, SLOT_BYTES) if step % 2 else slice(SLOT_BYTES, None)
        assert before[kept] == after[kept], "the newer slot is never written over"
        assert checkpoint.state is not None
        assert checkpoint.state.sequence == step
        checkpoint = Checkpoint(path)
        assert checkpoint.state is not None
        assert (checkpoint.state.sequence, checkpoint.state.position) == (step, step)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_torn_slot_falls_back_to_the_one_before(path: Path, steps: int) -> None:
    checkpoint = Checkpoint.create(path, FIRST)
    for step in range(1, steps):
        checkpoint.write(CheckpointState(position=step))
    before, whole = checkpoint.state, path.read_bytes()
    checkpoint.write(SECOND)
    after = path.read_bytes()
    changed = [i for i in range(len(after)) if whole[i : i + 1] != after[i : i + 1]]
    for torn_at in range(changed[0], changed[-1] + 1):
        path.write_bytes(after[:torn_at] + whole[torn_at:])
        assert reopened(path) == before
    path.write_bytes(after)
    assert fields(reopened(path)) == fields(SECOND)


def test_every_flipped_bit_of_a_slot_is_noticed(path: Path) -> None:
    checkpoint = Checkpoint.create(path, FIRST)
    checkpoint.write(SECOND)
    data = path.read_bytes()
    length = data.index(b"\n", SLOT_BYTES) + 1 - SLOT_BYTES
    for at in range(SLOT_BYTES, SLOT_BYTES + length):
        for bit in range(8):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            assert fields(reopened(path)) == fields(FIRST)


@pytest.mark.parametrize(
    "data", [b"", b"x", bytes(2 * SLOT_BYTES), b"checkpoint 0 first=0\n" * 500]
)
def test_without_a_sound_slot_there_is_no_state(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert reopened(path) is None


def test_one_slot_alone_is_enough(path: Path) -> None:
    checkpoint = Checkpoint.create(path, FIRST)
    path.write_bytes(path.read_bytes()[:SLOT_BYTES])
    assert fields(reopened(path)) == fields(FIRST)
    path.write_bytes(path.read_bytes().rstrip(b"\0"))
    assert reopened(path) == checkpoint.state


def test_only_a_change_of_the_clean_flag_is_synced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[disk.File]()
    checkpoint = Checkpoint.create(path, FIRST)
    monkeypatch.setattr(disk, "sync", synced.append)
    checkpoint.write(FIRST)
    assert not synced
    checkpoint.write(SECOND, synced=True)
    assert len(synced) == 1


def test_a_write_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint.create(path, FIRST)

    def full(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(disk, "write_at", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.write(SECOND)
    monkeypatch.undo()
    assert fields(checkpoint.state) == fields(FIRST)
    checkpoint.write(SECOND)
    assert fields(reopened(path)) == fields(SECOND)
