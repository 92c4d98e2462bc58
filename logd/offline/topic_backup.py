"""One topic of a backup: a topic directory that is only added to.

It has one additional file, `backup`: the checkpoint that the last backup wrote, saved before the
checkpoint itself. A daemon that starts on the copy writes a checkpoint of its own. If the two
differ, a daemon has run on the copy, and it must not be added to any more. Blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from logd.errors import DataDirError
from logd.partition import Partition
from logd.repair import Damage, PartitionScan, scan_partition
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


class CopyMismatch(DataDirError):
    """A copy differs from its source."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} differs from its source; check the disk and the memory of this machine, then"
            " run the backup again"
        )


class SideFiles(NamedTuple):
    """The producers and cursors of a topic at one moment; opened, so that they stay readable."""

    directory: Path
    ids: dict[str, File]  # the newest, which a start reads, and the one before it
    ids_to: int  # they cover everything before this offset
    cursors: bytes | None

    @classmethod
    def read(cls, directory: Path) -> SideFiles:
        logs = directory.glob("[0-9]" * 20 + ".log")
        ids_to = max((int(path.stem) for path in logs), default=0)  # a roll writes the ids first
        newest = sorted(directory.glob("[0-9]" * 20 + ".ids"))[-2:]
        ids = {path.name: File(path) for path in newest}
        return cls(directory, ids, ids_to, _cursors(directory))


def _cursors(directory: Path) -> bytes | None:
    """The cursors file, without a line that is only partly written."""
    try:
        file = File(directory / cursors.CURSORS)
    except FileNotFoundError:
        return None
    data = file.read_waiting(0, file.size())
    decoded = cursors.decode(data)
    return data[: decoded.end] if decoded.is_torn else data


def same_bytes(one: File, other: File, position: int) -> bool:
    """Do both files have the same bytes before `position`? Compares the last of them."""
    size = min(position, _COMPARED_BYTES)
    data = one.read_waiting(position - size, size)
    return len(data) == size and data == other.read_waiting(position - size, size)


class TopicCopy:
    def __init__(self, directory: Path, checkpoint: Checkpoint, state: CheckpointState) -> None:
        self.directory = directory
        self.state = state  # the copy's checkpoint, with the epoch of the source
        self.problem = ""  # why it must not be added to
        self.id = read_meta(directory)[0]
        self._checkpoint = checkpoint

    @classmethod
    def create(cls, directory: Path, meta: bytes, state: CheckpointState) -> TopicCopy:
        """A new, empty copy that begins at `state.first`. Its `backup` file is written last."""
        disk.make_directory(directory)
        disk.create(directory / META, meta)
        checkpoint = Checkpoint.create(directory / CHECKPOINT, state)
        Partition.create(directory, state.first)
        disk.sync_directory(directory)
        disk.replace(directory / MARK, state.encode())
        return cls(directory, checkpoint, state)

    @classmethod
    def open(cls, directory: Path, now: CheckpointState) -> TopicCopy | None:
        """The copy in this directory, if there is one. `now` is the state of the source."""
        if not directory.exists():
            return None
        disk.refuse_link(directory)
        checkpoint = Checkpoint(directory / CHECKPOINT)
        saved = checkpoint.state or CheckpointState()
        epoch = {"epoch": now.epoch, "began": now.began, "since_ms": now.since_ms}
        copy = cls(directory, checkpoint, replace(saved, **epoch))  # type: ignore[arg-type]
        copy.problem = copy._find_problem(checkpoint.state)
        return copy

    def _find_problem(self, saved: CheckpointState | None) -> str:
        try:
            mark = saved_state(File(self.directory / MARK))
        except FileNotFoundError:
            mark = None
        if mark is None:
            return f"{self.directory} was not made by a backup; use another directory"
        if saved is None or not self._path(saved.partition).exists():
            return f"{self.directory} is damaged; remove it to copy the topic again"
        if saved != mark and saved.sequence != mark.sequence - 1:
            return (
                f"a daemon has run on {self.directory}, so it is no longer a copy; use another"
                " directory"
            )
        return ""

    def _path(self, first: int) -> Path:
        return Partition(self.directory, first).path

    def active_file(self) -> File:
        return File(self._path(self.state.partition))

    def index_in(self, partitions: list[Partition]) -> int:
        """The index of the partition at which the copy continues."""
        return [partition.first for partition in partitions].index(self.state.partition)

    # -- adding -----------------------------------------------------------------------------------

    def _save(self, state: CheckpointState) -> None:
        """Record what the copy holds; all of it is on disk."""
        state = replace(state, sequence=self.state.sequence + 1)
        disk.replace(self.directory / MARK, state.encode())
        self._checkpoint.write(state, synced=True)
        self.state = state

    def expire(self, first: int) -> int:
        """Delete the partitions before `first`, the checkpoint first, as retention does."""
        if first > self.state.first:
            self._save(replace(self.state, first=first))
        names = [int(path.stem) for path in self.directory.glob("[0-9]" * 20 + ".log")]
        expired = sorted(name for name in names if name < first)
        for name in expired:
            remove(Partition(self.directory, name))
        return len(expired)

    def begin(self, first: int) -> None:
        """Start the next partition; the one before it is complete and on disk."""
        self._path(first).unlink(missing_ok=True)  # of a backup that was killed
        Partition.create(self.directory, first)
        disk.sync_directory(self.directory)
        self._save(replace(self.state, partition=first, position=0, next=first))

    def extend(
        self, source: Partition, sealed: bool, progress: Callable[[int], object]
    ) -> list[Damage]:
        """Copy the rest of a partition. Returns the damage of the source."""
        name, start = source.path.name, self.state.position
        ours = Partition.open_active(self.directory, source.first)
        disk.cut(ours.file, start)  # what a killed backup left
        _copy(source.file, start, source.size, ours.file, progress)
        result = scan_partition(ours.file, name, source.first, bodies=False, safe_to=start)
        damages: list[Damage] = []
        index = result.index
        if result.torn or result.damages or result.next != source.next:
            damages = _source_damages(source, ours)
            index = saved_index(source) or index
        elif sealed:
            index.append(IndexEntry(result.next, result.end, result.time_ms))
        disk.sync(ours.file)
        if not same_bytes(source.file, ours.file, source.size):
            raise CopyMismatch(ours.path)
        disk.replace_if_room(ours.index_path, index.encoded())
        self._save(replace(self.state, position=source.size, next=source.next))
        return damages

    def add_side_files(self, side_files: SideFiles) -> None:
        """Copy producers and cursors, after the log, because they must not be ahead of it."""
        for name, file in side_files.ids.items():
            if not _has_content(file, self.directory / name):
                _copy_file(file, self.directory / name)
        for path in self.directory.glob("[0-9]" * 20 + ".ids"):
            if side_files.ids and path.name < min(side_files.ids):
                disk.remove(path)
        data = side_files.cursors
        if data is not None and data != _cursors(self.directory):
            disk.replace(self.directory / cursors.CURSORS, data)
        if (side_files.directory / QUARANTINE).is_dir():
            _copy_directory(side_files.directory / QUARANTINE, self.directory / QUARANTINE)


def copy_files(source: Path, target: Path) -> int:
    """Copy the files of a topic without checking them. Returns their size."""
    size = _copy_directory(source, target)
    state = Checkpoint(target / CHECKPOINT).state
    if state is not None:
        disk.replace(target / MARK, state.encode())
    if (source / QUARANTINE).is_dir():
        size += _copy_directory(source / QUARANTINE, target / QUARANTINE)
    return size


def _copy_directory(source: Path, target: Path) -> int:
    disk.refuse_link(source)
    if not target.exists():
        disk.make_directory(target)
        disk.sync_directory(target.parent)
    size = 0
    for path in sorted(source.glob("[!.]*")):
        if path.is_file() and not path.is_symlink():
            file = File(path)
            size += file.size()
            if not _has_content(file, target / path.name):
                _copy_file(file, target / path.name)
    return size


def _copy(
    source: File, start: int, end: int, target: File, progress: Callable[[int], object]
) -> None:
    while start < end:
        data = source.read_waiting(start, min(_COPY_BYTES, end - start))
        if not data:
            raise FileNotFoundError(f"the source ends at {start} instead of {end}")
        disk.write_at(target, [data], start)
        start += len(data)
        progress(len(data))


def _source_damages(source: Partition, ours: Partition) -> list[Damage]:
    """The copy is damaged. Unless the source has the same damage, copying failed."""
    known, name = saved_index(source), source.path.name
    result: PartitionScan = scan_partition(
        source.file, name, source.first, known=known, until=source.next
    )
    found = tail_damage(source, result, source.next)
    damages = [damage for damage in found if damage.position < source.size]
    if not damages:
        raise CopyMismatch(ours.path)
    return damages


def _has_content(file: File, path: Path) -> bool:
    """Does `path` have the same content? These files end in a checksum or never change."""
    try:
        there = File(path)
    except FileNotFoundError:
        return False
    size = file.size()
    return size == there.size() and same_bytes(file, there, size)


def _copy_file(file: File, path: Path) -> None:
    """Copy a whole file, or nothing."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    target = File(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    _copy(file, 0, file.size(), target, lambda size: None)
    disk.sync(target)
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
