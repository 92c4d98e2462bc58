"""A topic's directory: made, opened, rolled, closed. Everything here blocks and runs off the loop.

    meta.json                          format version, random id, when it was created, its own sum
    00000000000000000000.log           a partition, named by its first offset
    00000000000000000000.index         its sparse index
    00000000000000000000.ids           what was remembered of producers when it was sealed
    checkpoint                         how far the log is known to be on disk
    quarantine/                        what a recovery cut off

Always: a topic appears whole or not at all; a new file's first byte comes after the old one was
synced; what is renamed or created is followed by a sync of the directory.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from logd import disk, repair
from logd.batch import Header, body_sum, scan
from logd.checkpoint import Checkpoint, State
from logd.disk import File
from logd.errors import DataDirError
from logd.index import BadIndex, Index
from logd.partition import Partition
from logd.producers import Producers

FORMAT = 1
HIDDEN = ".new-"
_LOG_NAME = re.compile(r"([0-9]{20})\.log")
_SAVE_EVERY_S = 1.0


class Mark(NamedTuple):
    """A place in the log: everything before it has been written, or synced."""

    partition: int
    position: int
    next: int
    batches: int


class Opened(NamedTuple):
    """What a topic needs to start work."""

    id: str
    partitions: list[Partition]
    checkpoint: Checkpoint
    producers: Producers
    time_ms: int
    epoch: int
    epoch_began: int
    clean: bool
    report: repair.Report | None


def create_topic(directory: Path, now_ms: int) -> Opened:
    """Make the files under a hidden name, sync them, and only then give them the real one."""
    hidden = directory.with_name(HIDDEN + directory.name)
    if hidden.exists():
        shutil.rmtree(hidden)
    disk.make_directory(hidden)
    topic_id = secrets.token_hex(16)
    disk.create(hidden / "meta.json", _meta(topic_id, now_ms))
    checkpoint = Checkpoint.create(hidden / "checkpoint", State(clean=False))
    Partition.create(hidden, 0)
    disk.sync_directory(hidden)
    disk.rename_directory(hidden, directory)
    active = Partition.open_active(directory, 0)
    active.load(Index(), 0, 0, 0)
    return Opened(topic_id, [active], checkpoint, Producers(), 0, 1, 0, False, None)


def open_topic(name: str, directory: Path) -> Opened:
    """Read what is there; after a stop that was not clean, make it sound first."""
    topic_id = _read_meta(directory / "meta.json")
    checkpoint = _open_checkpoint(directory)
    state = checkpoint.state
    assert state is not None
    firsts = _partition_names(directory, state)
    sealed = [Partition.open_sealed(directory, first, next_) for first, next_ in pairwise(firsts)]
    active = Partition.open_active(directory, firsts[-1])
    clean = state.clean and (state.partition, state.position) == (active.first, active.file.size())
    report = None
    if clean:
        headers, producers = _load(active)
    else:
        report, headers = _recover(name, active, state)
        producers = None
    if producers is None:
        producers = _remember(sealed)
        for _, header in headers if not clean else _all_headers(active):
            producers.note(header.id, header.offset, header.messages, header.sum)
    time_ms = active.max_time_ms or (sealed[-1].newest_time_ms if sealed else 0)
    epoch, began = state.epoch, state.began
    if not clean:
        epoch, began = epoch + 1, active.next
        checkpoint.write(
            State(firsts[0], active.first, active.size, epoch, began, False), synced=True
        )
    return Opened(
        topic_id, [*sealed, active], checkpoint, producers, time_ms, epoch, began, clean, report
    )


def roll(old: Partition, producers: Producers) -> Partition:
    """Finish `old` on disk and make the partition that follows it."""
    old.sync()
    disk.replace(old.ids_path, producers.encode(old.next, old.size))
    new = Partition(old.path.parent, old.next)
    new.path.unlink(missing_ok=True)  # an empty one, left by an attempt that failed
    new = Partition.create(old.path.parent, old.next)
    disk.sync_directory(new.path.parent)
    old.save_index(closing=True)
    return new


def save_progress(active: Partition, checkpoint: Checkpoint, state: State, now_s: float) -> None:
    """After a sync: note how far the log is durable, at most once a second."""
    if now_s - checkpoint.written_at_s >= _SAVE_EVERY_S:
        checkpoint.written_at_s = now_s
        active.save_index()
        checkpoint.write(state)


def close_topic(
    active: Partition, producers: Producers, checkpoint: Checkpoint, state: State
) -> None:
    active.sync()
    active.save_index()
    disk.replace(active.ids_path, producers.encode(active.next, active.size))
    checkpoint.write(state, synced=True)


# -- reading it back ----------------------------------------------------------------------------


def _recover(
    name: str, active: Partition, state: State
) -> tuple[repair.Report, list[tuple[int, Header]]]:
    """Trust only what the disk has: sync, drop the cache, scan, cut what is torn."""
    file, checked_to = active.file, state.position if state.partition == active.first else 0
    disk.sync(file)
    disk.drop_cache(file)
    sound = repair.read_sound(file, active.first, checked_to)
    report = repair.Report(name, active.path.name, sound.end)
    if sound.end < checked_to:
        why = (
            sound.damage.reason if sound.damage else "the file is shorter than the checkpoint says"
        )
        raise DataDirError(
            f"{active.path}: damaged at byte {sound.end}, before the checkpoint: {why}"
        )
    if sound.damage:
        cut_bytes = file.size() - sound.end
        copy = repair.cut_tail(active.path, file, sound.end, active.path.parent / "quarantine")
        report = repair.Report(
            name, active.path.name, sound.end, cut_bytes, sound.damage.reason, copy
        )
    index = Index()
    for position, header in sound.headers:
        index.note(header.offset, position, header.time_ms)
    last = sound.headers[-1][1] if sound.headers else None
    active.load(index, sound.end, last.next if last else active.first, last.time_ms if last else 0)
    disk.replace(active.index_path, index.encoded())
    return report, sound.headers


def _load(active: Partition) -> tuple[list[tuple[int, Header]], Producers | None]:
    """After a clean stop: take index and ids as they were saved, read the last batches."""
    size = active.file.size()
    index = _saved_index(active)
    start = index.entry(len(index) - 1) if index else None
    sound = repair.read_sound(
        active.file, start.offset if start else active.first, size, start.position if start else 0
    )
    if sound.damage:
        raise DataDirError(f"{active.path}: {sound.damage}")
    if index is None:
        index = Index()
        for position, header in sound.headers:
            index.note(header.offset, position, header.time_ms)
        disk.replace(active.index_path, index.encoded())
    last = sound.headers[-1][1] if sound.headers else None
    active.load(index, size, last.next if last else active.first, last.time_ms if last else 0)
    saved = _saved_producers(active)
    fits = saved is not None and saved[1:] == (active.next, active.size)
    return sound.headers, saved[0] if saved and fits else None


def _saved_index(active: Partition) -> Index | None:
    try:
        file = File(active.index_path)
        index = Index(bytearray(file.read_waiting(0, file.size())))
        sound = all(index.entry(i).position < active.file.size() for i in range(len(index)))
        return index if len(index) and sound and index.entry(0)[:2] == (active.first, 0) else None
    except (FileNotFoundError, BadIndex):
        return None


def _saved_producers(partition: Partition) -> tuple[Producers, int, int] | None:
    try:
        file = File(partition.ids_path)
    except FileNotFoundError:
        return None
    return Producers.decode(file.read_waiting(0, file.size()))


def _remember(sealed: list[Partition]) -> Producers:
    """The newest saved memory of producers, brought up to date from the partitions behind it."""
    behind: list[Partition] = []
    producers = Producers()
    for partition in reversed(sealed):
        saved = _saved_producers(partition)
        if saved and saved[1:] == (partition.next, partition.size):
            producers = saved[0]
            break
        behind.append(partition)
    for partition in reversed(behind):
        for _, header in _all_headers(partition):
            producers.note(header.id, header.offset, header.messages, header.sum)
    return producers


def _all_headers(partition: Partition) -> list[tuple[int, Header]]:
    found = scan(
        partition.file.read_waiting, 0, partition.size, bodies=False, expect=partition.first
    )
    return [(batch.position, batch.header) for batch in found]


def _partition_names(directory: Path, state: State) -> list[int]:
    firsts = sorted(int(m[1]) for m in map(_LOG_NAME.fullmatch, os.listdir(directory)) if m)
    if not firsts or firsts[-1] < state.partition:
        raise DataDirError(
            f"{directory}: the partition that starts at {state.partition} is missing"
        )
    return firsts


def _open_checkpoint(directory: Path) -> Checkpoint:
    try:
        checkpoint = Checkpoint(directory / "checkpoint")
    except FileNotFoundError:
        raise DataDirError(f"{directory}: the checkpoint is missing") from None
    if checkpoint.state is None:
        raise DataDirError(f"{directory}: neither slot of the checkpoint is sound")
    return checkpoint


def _meta(topic_id: str, created_ms: int) -> bytes:
    content = {"format": FORMAT, "id": topic_id, "created": created_ms}
    return json.dumps({**content, "sum": _meta_sum(content)}).encode() + b"\n"


def _meta_sum(content: dict[str, object]) -> str:
    return body_sum(json.dumps(content, sort_keys=True).encode())


def _read_meta(path: Path) -> str:
    try:
        file = File(path)
        content = json.loads(file.read_waiting(0, 1 << 16))
        sound = content.pop("sum") == _meta_sum(content)
    except FileNotFoundError:
        raise DataDirError(f"{path}: is missing") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        sound = False
    if not sound:
        raise DataDirError(f"{path}: is damaged")
    if content["format"] != FORMAT:
        raise DataDirError(f"{path}: format {content['format']} is not one this logd can read")
    return str(content["id"])
