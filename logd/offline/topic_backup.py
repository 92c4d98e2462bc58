"""One topic of a backup: a directory that is a topic like any other, and is only added to.

It has one file more, `backup`: the checkpoint as the copying wrote it last, put there before the
checkpoint itself. A daemon that starts on the copy writes a checkpoint of its own, so the two tell
whether one has: then the copy has a life of its own, and is not added to any more. Blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from logd.errors import DataDirError
from logd.partition import Partition
from logd.repair import Damage, Survey, survey
from logd.storage import cursors, disk
from logd.storage.checkpoint import Checkpoint, CheckpointState, saved_state
from logd.storage.disk import File
from logd.storage.index import IndexEntry
from logd.storage.recovery import read_meta, saved_index, tail_damage
from logd.storage.topic_files import CHECKPOINT, META, remove

MARK = "backup"
QUARANTINE = "quarantine"
_COPY_BYTES = 1 << 20
_COMPARED_BYTES = 64 << 10


class Miscopied(DataDirError):
    """A copy is not what its source has."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is not what was copied there; check the disk and the memory of this machine,"
            " then run this again"
        )


class Beside(NamedTuple):
    """What a topic has beside its log, as of one moment; opened, so that it stays readable."""

    directory: Path
    ids: dict[str, File]  # the newest, which is all that a start reads, and the one before it
    ids_to: int  # they tell of all that was written before this offset
    cursors: bytes | None

    @classmethod
    def read(cls, directory: Path) -> Beside:
        logs = directory.glob("[0-9]" * 20 + ".log")
        ids_to = max((int(path.stem) for path in logs), default=0)  # a roll writes the ids first
        newest = sorted(directory.glob("[0-9]" * 20 + ".ids"))[-2:]
        ids = {path.name: File(path) for path in newest}
        return cls(directory, ids, ids_to, _cursors(directory))


def _cursors(directory: Path) -> bytes | None:
    """The file of cursors, without a line that is being written just now."""
    try:
        file = File(directory / cursors.CURSORS)
    except FileNotFoundError:
        return None
    data = file.read_waiting(0, file.size())
    decoded = cursors.decode(data)
    return data[: decoded.end] if decoded.is_torn else data


def same_bytes(one: File, other: File, position: int) -> bool:
    """Do both files have the same before `position`? The last of it is compared."""
    size = min(position, _COMPARED_BYTES)
    data = one.read_waiting(position - size, size)
    return len(data) == size and data == other.read_waiting(position - size, size)


class TopicCopy:
    def __init__(self, directory: Path, checkpoint: Checkpoint, state: CheckpointState) -> None:
        self.directory = directory
        self.state = state  # what the copy's checkpoint says, with the source's epoch
        self.trouble = ""  # why it is not to be added to
        self.id = read_meta(directory)[0]
        self._checkpoint = checkpoint

    @classmethod
    def create(cls, directory: Path, meta: bytes, state: CheckpointState) -> TopicCopy:
        """An empty one that begins at `state.first`. The mark comes last: without it, half made."""
        disk.make_directory(directory)
        disk.create(directory / META, meta)
        checkpoint = Checkpoint.create(directory / CHECKPOINT, state)
        Partition.create(directory, state.first)
        disk.sync_directory(directory)
        disk.replace(directory / MARK, state.encode())
        return cls(directory, checkpoint, state)

    @classmethod
    def open(cls, directory: Path, now: CheckpointState) -> TopicCopy | None:
        """The copy in this directory; None where there is none. `now` is what the source is at."""
        if not directory.exists():
            return None
        disk.refuse_link(directory)
        checkpoint = Checkpoint(directory / CHECKPOINT)
        saved = checkpoint.state or CheckpointState()
        epoch = {"epoch": now.epoch, "began": now.began, "since_ms": now.since_ms}
        copy = cls(directory, checkpoint, replace(saved, **epoch))  # type: ignore[arg-type]
        copy.trouble = copy._trouble(checkpoint.state)
        return copy

    def _trouble(self, saved: CheckpointState | None) -> str:
        try:
            mark = saved_state(File(self.directory / MARK))
        except FileNotFoundError:
            mark = None
        if mark is None:
            return f"{self.directory} is no copy that a backup made; use another directory"
        if saved is None or not self._path(saved.partition).exists():
            return f"{self.directory} is damaged; remove it, and it is copied anew"
        if saved != mark and saved.sequence != mark.sequence - 1:
            return (
                f"a daemon has run on {self.directory}, so it is no mere copy any more; use another"
                " directory"
            )
        return ""

    def _path(self, first: int) -> Path:
        return Partition(self.directory, first).path

    def active_file(self) -> File:
        return File(self._path(self.state.partition))

    def index_in(self, partitions: list[Partition]) -> int:
        """Which of these is the one to go on in."""
        return [partition.first for partition in partitions].index(self.state.partition)

    def moved_to(self, directory: Path) -> None:
        self.directory = directory

    # -- adding -----------------------------------------------------------------------------------

    def _save(self, state: CheckpointState) -> None:
        """Say what the copy holds, all of which is on disk."""
        state = replace(state, sequence=self.state.sequence + 1)
        disk.replace(self.directory / MARK, state.encode())
        self._checkpoint.write(state, synced=True)
        self.state = state

    def expire(self, first: int) -> int:
        """Leave out the partitions before `first`, as retention does: the checkpoint goes ahead."""
        if first > self.state.first:
            self._save(replace(self.state, first=first))
        names = [int(path.stem) for path in self.directory.glob("[0-9]" * 20 + ".log")]
        expired = sorted(name for name in names if name < first)
        for name in expired:
            remove(Partition(self.directory, name))
        return len(expired)

    def begin(self, first: int) -> None:
        """The next partition; the one before it is whole, and on disk."""
        self._path(first).unlink(missing_ok=True)  # of a copying that was killed here
        Partition.create(self.directory, first)
        disk.sync_directory(self.directory)
        self._save(replace(self.state, partition=first, position=0, next=first))

    def extend(
        self, source: Partition, sealed: bool, progress: Callable[[int], object]
    ) -> list[Damage]:
        """Bring the newest file to where the source's was looked at. Returns damage of that."""
        name, start = source.path.name, self.state.position
        ours = Partition.open_active(self.directory, source.first)
        disk.cut(ours.file, start)  # what a copying that was killed has left
        _copy(source.file, start, source.size, ours.file, progress)
        result = survey(ours.file, name, source.first, bodies=False, safe_to=start)
        damages: list[Damage] = []
        index = result.index
        if result.torn or result.damages or result.next != source.next:
            damages = _of_the_source(source, ours)
            index = saved_index(source) or index
        elif sealed:
            index.append(IndexEntry(result.next, result.end, result.time_ms))
        disk.sync(ours.file)
        if not same_bytes(source.file, ours.file, source.size):
            raise Miscopied(ours.path)
        disk.replace_if_room(ours.index_path, index.encoded())
        self._save(replace(self.state, position=source.size, next=source.next))
        return damages

    def put_beside(self, beside: Beside) -> None:
        """What is remembered of producers and readers; behind the log, which it must not pass."""
        for name, file in beside.ids.items():
            if not _is_there(file, self.directory / name):
                _put(file, self.directory / name)
        for path in self.directory.glob("[0-9]" * 20 + ".ids"):
            if beside.ids and path.name < min(beside.ids):
                disk.remove(path)
        data = beside.cursors
        if data is not None and data != _cursors(self.directory):
            disk.replace(self.directory / cursors.CURSORS, data)
        if (beside.directory / QUARANTINE).is_dir():
            _put_all(beside.directory / QUARANTINE, self.directory / QUARANTINE)


def copy_files(source: Path, target: Path) -> int:
    """A topic's files as they are, whatever they are. Returns their bytes."""
    size = _put_all(source, target)
    state = Checkpoint(target / CHECKPOINT).state
    if state is not None:
        disk.replace(target / MARK, state.encode())
    if (source / QUARANTINE).is_dir():
        size += _put_all(source / QUARANTINE, target / QUARANTINE)
    return size


def _put_all(source: Path, target: Path) -> int:
    disk.refuse_link(source)
    if not target.exists():
        disk.make_directory(target)
        disk.sync_directory(target.parent)
    size = 0
    for path in sorted(source.glob("[!.]*")):
        if path.is_file() and not path.is_symlink():
            file = File(path)
            size += file.size()
            if not _is_there(file, target / path.name):
                _put(file, target / path.name)
    return size


def _copy(
    source: File, start: int, end: int, target: File, progress: Callable[[int], object]
) -> None:
    while start < end:
        data = source.read_waiting(start, min(_COPY_BYTES, end - start))
        if not data:
            raise FileNotFoundError(f"the source ends at {start}, and went to {end}")
        disk.write_at(target, [data], start)
        start += len(data)
        progress(len(data))


def _of_the_source(source: Partition, ours: Partition) -> list[Damage]:
    """The copy is not sound: then its source must be as it is, or the copying has gone wrong."""
    known, name = saved_index(source), source.path.name
    result: Survey = survey(source.file, name, source.first, known=known, until=source.next)
    found = tail_damage(source, result, source.next)
    damages = [damage for damage in found if damage.position < source.size]
    if not damages:
        raise Miscopied(ours.path)
    return damages


def _is_there(file: File, path: Path) -> bool:
    """Has `path` the same content? Such files end in a sum, or never change."""
    try:
        there = File(path)
    except FileNotFoundError:
        return False
    size = file.size()
    return size == there.size() and same_bytes(file, there, size)


def _put(file: File, path: Path) -> None:
    """A whole copy of a file under its name, or none."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    target = File(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    _copy(file, 0, file.size(), target, lambda size: None)
    disk.sync(target)
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
