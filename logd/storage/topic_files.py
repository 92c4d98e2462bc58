"""A topic's directory: made, rolled, closed. Everything here blocks and runs off the loop.

    meta.json                          format version, random id, when it was created, its own sum
    00000000000000000000.log           a partition, named by its first offset
    00000000000000000000.index         its sparse index
    00000000000000000000.ids           what was remembered of producers when it was sealed
    checkpoint                         how far the log is known to be on disk
    cursors                            where those who read it stand; there from the first COMMIT on
    quarantine/                        what a recovery cut off

Always: a topic appears whole or not at all; a new file's first byte comes after the old one was
synced; what is renamed or created is followed by a sync of the directory.
"""

from __future__ import annotations

import json
import secrets
import shutil
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

FORMAT = 1
HIDDEN = ".new-"
META = "meta.json"
CHECKPOINT = "checkpoint"
_SAVE_EVERY_S = 1.0


class Opened(NamedTuple):
    """What a topic needs to start work."""

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
    """Make the files under a hidden name, sync them, and only then give them the real one."""
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


def roll(
    old: Partition, producers: Producers, checkpoint: Checkpoint, state: CheckpointState
) -> Partition:
    """Finish `old` on disk and make the partition that follows it."""
    old.sync()
    disk.replace(old.ids_path, producers.encode(old.next, old.size))
    Partition(old.path.parent, old.next).path.unlink(missing_ok=True)  # of an attempt that failed
    new = Partition.create(old.path.parent, old.next)
    disk.sync_directory(new.path.parent)
    try:
        old.save_index(closing=True)
        checkpoint.write(replace(state, partition=new.first, position=0, next=new.next))
    except OSError:
        disk.remove(new.path)  # else it would be the newest at the next start
        raise
    return new


def remove(partition: Partition) -> None:
    """Delete an expired partition; the checkpoint has left it behind already."""
    for path in (partition.path, partition.index_path):
        if path.exists():
            disk.remove(path)
    disk.sync_directory(partition.path.parent)


def remove_old_ids(directory: Path, first: int) -> None:
    """Delete what was remembered at the end of expired partitions, but for the newest there is.

    That one is all that tells of producers until the next partition is sealed.
    """
    saved = sorted(directory.glob("[0-9]" * 20 + ".ids"))
    for path in saved[:-1]:
        if int(path.stem) < first:
            try:
                disk.remove(path)
            except OSError:
                pass  # small, and tried again when the next partition goes


def progress_is_due(checkpoint: Checkpoint, now_s: float) -> bool:
    """At most once a second."""
    if now_s - checkpoint.written_at_s < _SAVE_EVERY_S:
        return False
    checkpoint.written_at_s = now_s
    return True


def save_progress(active: Partition, checkpoint: Checkpoint, state: CheckpointState) -> None:
    """After a sync: note how far the log is durable."""
    try:
        active.save_index()
        checkpoint.write(state)
    except OSError:
        pass  # the data is safe, and this only says how far; the next sync says it again


def close_topic(
    active: Partition, producers: Producers, checkpoint: Checkpoint, state: CheckpointState
) -> None:
    active.sync()
    try:
        active.save_index()
    except OSError as error:
        if error.errno not in disk.NO_SPACE:
            raise  # else it is rebuilt at the next start
    disk.replace_if_room(active.ids_path, producers.encode(active.next, active.size))
    checkpoint.write(state, synced=True)


def encode_meta(topic_id: str, created_ms: int) -> bytes:
    content = {"format": FORMAT, "id": topic_id, "created": created_ms}
    return json.dumps({**content, "sum": meta_sum(content)}).encode() + b"\n"


def meta_sum(content: dict[str, object]) -> str:
    return body_sum(json.dumps(content, sort_keys=True).encode())
