"""Copy topics out of a data directory while its daemon is writing: `log-cli backup`.

A log only grows at its end and loses whole partitions at its start. So any run of its partitions,
with the last one cut after a whole batch, is a log, if the checkpoint next to it says where it
begins and ends. A copy is written like a log: bytes, a check of the checksums, a sync, then the
checkpoint. Always, also if the backup is killed: a daemon can start on every topic of the copy;
nothing is written twice; nothing that the source does not have is deleted. The source is only read,
but its newest partition is synced first, so that a power failure does not take from it what the
copy has. Blocks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path

from logd.errors import LogdError, NotFound
from logd.offline.integrity import size_of, topic_directories
from logd.offline.reader import TopicSnapshot, take_snapshot
from logd.offline.topic_backup import CopyMismatch, SideFiles, TopicCopy, copy_files, same_bytes
from logd.partition import Partition
from logd.repair import Damage
from logd.storage import disk
from logd.storage.checkpoint import CheckpointState
from logd.storage.recovery import read_meta
from logd.storage.topic_files import HIDDEN, META
from logd.wire.requests import topic_name

Progress = Callable[[int], object]  # receives the number of bytes copied since the last call

_MAX_TRIES = 20  # for a topic whose files are deleted while they are copied
_OPENED_AHEAD = 64  # files opened in advance, so that they stay readable if they are deleted
FORMER = "former"  # next to `topics`: copies of deleted topics whose name is in use again


@dataclass(slots=True)
class Copied:
    """The result of the backup of one topic."""

    topic: str
    first: int = 0
    next: int = 0
    partitions: int = 0
    bytes: int = 0
    new_bytes: int = 0
    new_partitions: int = 0  # started by this backup
    expired_partitions: int = 0  # deleted from the copy because the source has deleted them
    damages: list[Damage] = field(default_factory=list)  # of the source
    problem: str = ""  # why the copy is not up to date; "" if it is


class _Changed(Exception):
    """The files of the source have changed since the backup began."""


def topics_of(data_dir: Path, names: list[str]) -> tuple[list[Path], list[Path]]:
    """The directories of the named topics, or of all; and the directories that are not topics."""
    topics, others = list[Path](), list[Path]()
    for directory in topic_directories(data_dir, names):
        try:
            topic_name(os.fsencode(directory.name))
            topics.append(directory)
        except LogdError:
            others.append(directory)
    return topics, others


def to_copy_bytes(source: Path, target: Path) -> int:
    """An estimate of the bytes to copy for one topic."""
    return max(0, size_of(source) - size_of(target))


def back_up(source: Path, target: Path, progress: Progress = lambda size: None) -> Copied:
    """Bring the copy of one topic up to date."""
    done, has_miscopied = Copied(source.name), False
    for _ in range(_MAX_TRIES):
        try:
            _back_up(source, target, done, progress)
            return done
        except (_Changed, NotFound, FileNotFoundError):
            if not source.exists():
                done.problem = "it was removed while it was being copied"
                return done
        except CopyMismatch:  # the first may be a failed write that the daemon has cut off
            if has_miscopied:
                raise
            has_miscopied = True
    done.problem = (
        "its files expire faster than they can be copied; raise its retention limits, or use a"
        " faster disk for the copy"
    )
    return done


def _back_up(source: Path, target: Path, done: Copied, progress: Progress) -> None:
    topic_id = read_meta(source)[0]
    side_files = SideFiles.read(source)  # before the log, so that they are not ahead of it
    snapshot = take_snapshot(source)
    if snapshot.id != topic_id:
        raise _Changed  # the side files belong to another topic of the same name
    partitions = list(snapshot.readable.partitions.values())
    if snapshot.damages:
        _back_up_damaged(source, target, snapshot, done)
        return
    if snapshot.readable.first > side_files.ids_to:
        raise _Changed  # no file has the producers of what has expired meanwhile
    if len(partitions) > 1 and not partitions[-1].size:
        partitions.pop()  # a roll that fails removes it
    disk.sync(partitions[-1].file)
    copy, done.problem = _copy_to_continue(source, target, snapshot, partitions)
    if copy is None:
        return
    for partition in _opened_ahead(source, snapshot.id, partitions[copy.index_in(partitions) :]):
        _extend(copy, partition, partition is not partitions[-1], done, progress)
    copy.add_side_files(side_files)
    done.expired_partitions = copy.expire(partitions[0].first)
    if copy.directory != target:
        _put_in_place(copy, target)
    _count(copy, partitions, done)


def _back_up_damaged(source: Path, target: Path, snapshot: TopicSnapshot, done: Copied) -> None:
    """Keep a copy from before the damage; without one, copy the damaged files."""
    done.damages = list(snapshot.damages)
    if target.exists():
        done.problem = "it is damaged, so its copy was not changed; repair it first"
        return
    hidden = target.with_name(HIDDEN + target.name)
    shutil.rmtree(hidden, ignore_errors=True)
    done.bytes = done.new_bytes = copy_files(source, hidden)
    disk.rename(hidden, target)
    disk.sync_directory(target.parent)
    done.first, done.next = snapshot.readable.first, snapshot.readable.next
    done.partitions = done.new_partitions = len(snapshot.readable.partitions)
    done.problem = "it is damaged, and so is the copy"


def _copy_to_continue(
    source: Path, target: Path, snapshot: TopicSnapshot, partitions: list[Partition]
) -> tuple[TopicCopy | None, str]:
    """The existing copy, or a new one under a hidden name; or why neither can be used."""
    state = replace(snapshot.state, clean=False)
    meta = (source / META).read_bytes()
    visible = TopicCopy.open(target, state)
    if visible is not None and visible.problem:
        return None, visible.problem
    problem = None
    if visible is not None and visible.id == snapshot.id:
        problem = _obstacle(visible, partitions)
    _check_unchanged(source, snapshot.id)  # otherwise `meta` may belong to another topic
    if problem is not None:
        return (None, problem) if problem else (visible, "")
    hidden_path = target.with_name(HIDDEN + target.name)
    hidden = TopicCopy.open(hidden_path, state)
    if hidden is not None and hidden.id == snapshot.id and _obstacle(hidden, partitions) == "":
        return hidden, ""
    shutil.rmtree(hidden_path, ignore_errors=True)
    return TopicCopy.create(hidden_path, meta, _empty(state, partitions[0])), ""


def _empty(state: CheckpointState, first: Partition) -> CheckpointState:
    at = first.first
    return replace(state, first=at, partition=at, position=0, next=at, sequence=0)


def _obstacle(copy: TopicCopy, partitions: list[Partition]) -> str | None:
    """Why a copy cannot be continued: "" if it can, None if all of it has expired."""
    if copy.problem:
        return copy.problem
    ours = {partition.first: partition for partition in partitions}.get(copy.state.partition)
    if ours is None and copy.state.next <= partitions[0].first:
        return None
    if ours is None or not same_bytes(ours.file, copy.active_file(), copy.state.position):
        return (
            f"its copy has different messages before offset {copy.state.next}; back up into"
            " another directory and compare both"
        )
    return ""


def _opened_ahead(source: Path, topic_id: str, partitions: list[Partition]) -> Iterator[Partition]:
    """The partitions in order, each opened in advance and closed afterwards."""
    for i, partition in enumerate(partitions):
        for ahead in partitions[i : i + _OPENED_AHEAD]:
            assert ahead.file  # opens it
        _check_unchanged(source, topic_id)
        yield partition
        partition.close()


def _check_unchanged(source: Path, topic_id: str) -> None:
    """Raise _Changed if the directory is now another topic; if not, files opened before this are
    those of the topic."""
    if read_meta(source)[0] != topic_id:
        raise _Changed


def _extend(
    copy: TopicCopy, partition: Partition, sealed: bool, done: Copied, progress: Progress
) -> None:
    if copy.state.partition != partition.first:
        copy.begin(partition.first)
    start = copy.state.position
    done.damages += copy.extend(partition, sealed, progress)
    done.new_partitions += not start
    done.new_bytes += partition.size - start


def _put_in_place(copy: TopicCopy, target: Path) -> None:
    """Rename a new copy. An older copy is deleted, or kept aside if it is of another topic."""
    old = target.with_name(f"{HIDDEN}.old-{target.name}")  # a start removes these
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        former_id = read_meta(target)[0]
        if former_id != copy.id:
            old = _former_directory(target, former_id or "unknown")
        disk.rename(target, old)
        disk.sync_directory(old.parent)
    disk.rename(copy.directory, target)
    disk.sync_directory(target.parent)
    copy.directory = target
    if old.parent == target.parent:
        shutil.rmtree(old, ignore_errors=True)


def _former_directory(target: Path, former_id: str) -> Path:
    """A new directory for the copy of a former topic of this name."""
    directory = target.parent.parent / FORMER
    disk.make_directories(directory)
    suffixes = chain([""], map("-{}".format, count(2)))
    names = (f"{target.name}-{former_id}{suffix}" for suffix in suffixes)
    return next(directory / name for name in names if not (directory / name).exists())


def _count(copy: TopicCopy, partitions: list[Partition], done: Copied) -> None:
    """Count what the copy has, and check that files copied earlier have the right size."""
    done.first, done.next = copy.state.first, copy.state.next
    done.partitions = len(partitions)
    for partition in partitions:
        path = copy.directory / partition.path.name
        size = path.stat().st_size if path.exists() else -1
        done.bytes += max(0, size)
        if size != partition.size:
            done.problem = (
                f"{partition.path.name} has another size in the copy; run log-cli check on the copy"
            )
