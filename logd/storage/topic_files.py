"""The files of a topic's directory: created, rolled, deleted, closed. Everything here blocks.

    meta.json                          format version, random id, creation time, checksum
    00000000000000000000.log           a partition, named after its first offset
    00000000000000000000.index         its sparse index
    00000000000000000000.ids           the producers known when the partition was sealed
    checkpoint                         up to where the log is known to be on disk
    cursors                            the committed offsets; created by the first COMMIT
    quarantine/                        bytes that a recovery has cut off

Always: a topic appears complete or not at all; the old partition is synced before the first byte
of a new one is written; after a file is created or renamed its directory is synced.
"""

from __future__ import annotations

import json
import secrets
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from logd import repair
from logd.batch import body_sum
from logd.partition import Partition
from logd.storage import disk
from logd.storage.checkpoint import Checkpoint, CheckpointState
from logd.storage.cursors import CursorFile
from logd.storage.index import Index
from logd.storage.producers import Producers
from logd.storage.readable_range import ReadableRange
from logd.storage.topic_sync import LogPosition

FORMAT = 1
HIDDEN = ".new-"
META = "meta.json"
CHECKPOINT = "checkpoint"
_SAVE_EVERY_S = 1.0


class Opened(NamedTuple):
    """A topic's files as a start found or created them."""

    id: str
    partitions: list[Partition]
    checkpoint: Checkpoint
    producers: Producers
    time_ms: int
    state: CheckpointState
    clean: bool
    report: repair.RepairReport | None  # of a recovery
    cursors: CursorFile
    damages: tuple[repair.Damage, ...] = ()


def create_topic(directory: Path, now_ms: int) -> Opened:
    """Create the files under a hidden name, sync them, and then rename the directory."""
    hidden = directory.with_name(HIDDEN + directory.name)
    if hidden.exists():
        shutil.rmtree(hidden)
    disk.make_directory(hidden)
    topic_id = secrets.token_hex(16)
    disk.create(hidden / META, encode_meta(topic_id, now_ms))
    state = CheckpointState(since_ms=now_ms, clean=False)
    checkpoint = Checkpoint.create(hidden / CHECKPOINT, state)
    Partition.create(hidden, 0)
    disk.sync_directory(hidden)
    disk.rename(hidden, directory)
    disk.sync_directory(directory.parent)
    active = Partition.open_active(directory, 0)
    active.load(Index(), 0, 0, 0)
    cursors = CursorFile(directory)
    return Opened(topic_id, [active], checkpoint, Producers(), now_ms, state, False, None, cursors)


def remove(partition: Partition) -> None:
    """Delete an expired partition; the checkpoint already starts after it."""
    for path in (partition.path, partition.index_path):
        if path.exists():
            disk.remove(path)
    disk.sync_directory(partition.path.parent)


def remove_old_ids(directory: Path, first: int) -> None:
    """Delete the saved producers of expired partitions, except the newest file.

    Until the next partition is sealed, no other file has the producers.
    """
    saved = sorted(directory.glob("[0-9]" * 20 + ".ids"))
    for path in saved[:-1]:
        if int(path.stem) < first:
            with suppress(OSError):  # a small file; tried again when the next partition expires
                disk.remove(path)


class TopicFiles:
    """The checkpoint of an open topic, and the changes of files that it has to record."""

    def __init__(self, opened: Opened, readable: ReadableRange) -> None:
        self.state = opened.state
        self.is_marked_unclean = not opened.clean and not opened.damages  # in the checkpoint
        self._checkpoint, self._producers = opened.checkpoint, opened.producers
        self._readable = readable
        self._saved_at_s = 0.0

    def _state_at(self, end: LogPosition, clean: bool = False) -> CheckpointState:
        return replace(
            self.state, first=self._readable.first, partition=end.partition,
            position=end.position, next=end.next, clean=clean,
        )  # fmt: skip

    def mark_unclean(self, end: LogPosition) -> None:
        """Before the first write of a run: the next start must check what follows `end`."""
        self._checkpoint.write(self._state_at(end), synced=True)

    def save_first(self, end: LogPosition) -> None:
        """Before partitions are deleted: record that the log starts after them."""
        state = self._state_at(end, clean=not self.is_marked_unclean)
        self._checkpoint.write(state, synced=True)

    def save_progress(self, active: Partition, end: LogPosition, now_s: float) -> None:
        """After a sync, at most once per second: record that the log is on disk up to `end`."""
        if now_s - self._saved_at_s < _SAVE_EVERY_S:
            return
        self._saved_at_s = now_s
        with suppress(OSError):  # the data is on disk; the next sync tries again
            active.save_index()
            self._checkpoint.write(self._state_at(end))

    def roll(self, old: Partition, end: LogPosition) -> Partition:
        """Complete `old` on disk and create the partition that follows it."""
        old.sync()
        disk.replace(old.ids_path, self._producers.encode(old.next, old.size))
        Partition(old.path.parent, old.next).path.unlink(missing_ok=True)  # of a failed attempt
        new = Partition.create(old.path.parent, old.next)
        disk.sync_directory(new.path.parent)
        try:
            old.save_index(closing=True)
            state = replace(self._state_at(end), partition=new.first, position=0, next=new.next)
            self._checkpoint.write(state)
        except OSError:
            disk.remove(new.path)  # otherwise the next start would take it for the newest
            raise
        return new

    def close(self, active: Partition, end: LogPosition) -> None:
        """Sync everything and mark the stop as clean."""
        active.sync()
        try:
            active.save_index()
        except OSError as error:
            if error.errno not in disk.NO_SPACE:
                raise  # otherwise the next start rebuilds it
        disk.replace_if_room(active.ids_path, self._producers.encode(active.next, active.size))
        self._checkpoint.write(self._state_at(end, clean=True), synced=True)


def encode_meta(topic_id: str, created_ms: int) -> bytes:
    content = {"format": FORMAT, "id": topic_id, "created": created_ms}
    return json.dumps({**content, "sum": meta_sum(content)}).encode() + b"\n"


def meta_sum(content: dict[str, object]) -> str:
    return body_sum(json.dumps(content, sort_keys=True).encode())
