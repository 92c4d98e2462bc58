"""Copy topics out of a data directory while its daemon writes: what `log-cli backup` does.

A log grows at its end, loses whole files at its start, and changes nowhere else. So any run of its
partitions, the last one cut behind a whole batch, is a log, if the checkpoint beside it says where
it begins and ends. A copy is made like one that is written: bytes, the check of their sums, a sync,
and then the checkpoint. Always, killed at any point too: a start accepts every topic of the copy as
it is; what is there once is not written again; nothing the source does not have is thrown away. The
source is only read, and its newest file synced first: no power cut takes from it what the copy has.
Blocks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path

from logd.errors import LogdError, NotFound
from logd.offline.integrity import topic_directories
from logd.offline.reader import Looked, look
from logd.offline.topic_backup import Beside, Miscopied, TopicCopy, copy_files, same_bytes
from logd.partition import Partition
from logd.repair import Damage
from logd.storage import disk
from logd.storage.checkpoint import CheckpointState
from logd.storage.recovery import read_meta
from logd.storage.topic_files import HIDDEN, META
from logd.wire.requests import topic_name

Progress = Callable[[int], object]  # hears how many bytes were copied since the last call

_TRIES = 20  # at a topic whose files are deleted under the copying
_HELD_OPEN = 64  # files opened before their turn: one that is deleted then can still be read
FORMER = "former"  # beside `topics`: copies of topics that were made anew under the same name


@dataclass(slots=True)
class Copied:
    """What was done about one topic."""

    topic: str
    first: int = 0
    next: int = 0
    partitions: int = 0
    bytes: int = 0
    new_bytes: int = 0
    new_partitions: int = 0  # begun by this copying
    expired_partitions: int = 0  # gone from the copy because they are gone from the source
    damages: list[Damage] = field(default_factory=list)  # of the source, found on the way
    problem: str = ""  # why there is nothing new in the copy; "" if there is nothing to say


class _Changed(Exception):
    """The source's files are not what they were when this began."""


def topics_of(data_dir: Path, names: list[str]) -> tuple[list[Path], list[Path]]:
    """The directories of the topics of these names, or of all; and those that are none."""
    topics, others = list[Path](), list[Path]()
    for directory in topic_directories(data_dir, names):
        try:
            topic_name(os.fsencode(directory.name))
            topics.append(directory)
        except LogdError:
            others.append(directory)
    return topics, others


def to_copy_bytes(source: Path, target: Path) -> int:
    """About how much there is to do for one topic."""
    sizes = [_log_bytes(directory) for directory in (source, target)]
    return max(0, sizes[0] - sizes[1])


def _log_bytes(directory: Path) -> int:
    total = 0
    for path in directory.glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            pass  # expired just now
    return total


def back_up(source: Path, target: Path, progress: Progress = lambda size: None) -> Copied:
    """Bring the copy of one topic, a directory each, up to date."""
    done, has_miscopied = Copied(source.name), False
    for _ in range(_TRIES):
        try:
            _back_up(source, target, done, progress)
            return done
        except (_Changed, NotFound, FileNotFoundError):
            if not source.exists():
                done.problem = "it was removed while it was copied"
                return done
        except Miscopied:  # once, it may be a write that failed and was cut off under the copying
            if has_miscopied:
                raise
            has_miscopied = True
    done.problem = (
        "it loses files faster than they can be copied; keep more of it, or use a quicker disk for"
        " the copy"
    )
    return done


def _back_up(source: Path, target: Path, done: Copied, progress: Progress) -> None:
    topic_id = read_meta(source)[0]
    beside = Beside.read(source)  # before the log, so that none of it is ahead of the log's copy
    looked = look(source)
    if looked.id != topic_id:
        raise _Changed  # what was read beside the log is of another topic of the same name
    partitions = list(looked.view.partitions.values())
    if looked.damages:
        _back_up_damaged(source, target, looked, done)
        return
    if looked.view.first > beside.ids_to:
        raise _Changed  # nothing tells of the producers of what has expired meanwhile
    if len(partitions) > 1 and not partitions[-1].size:
        partitions.pop()  # a roll that fails takes it back
    disk.sync(partitions[-1].file)
    copy, done.problem = _copy_to_go_on_with(source, target, looked, partitions)
    if copy is None:
        return
    for partition in _held(source, looked.id, partitions[copy.index_in(partitions) :]):
        _extend(copy, partition, partition is not partitions[-1], done, progress)
    copy.put_beside(beside)
    done.expired_partitions = copy.expire(partitions[0].first)
    if copy.directory != target:
        _put_in_place(copy, target)
    _count(copy, partitions, done)


def _back_up_damaged(source: Path, target: Path, looked: Looked, done: Copied) -> None:
    """A copy from before the damage is worth more than a new one; no copy is worth nothing."""
    done.damages = list(looked.damages)
    if target.exists():
        done.problem = "it is damaged, so its copy is left as it was; repair it first"
        return
    hidden = target.with_name(HIDDEN + target.name)
    shutil.rmtree(hidden, ignore_errors=True)
    done.bytes = done.new_bytes = copy_files(source, hidden)
    disk.rename(hidden, target)
    disk.sync_directory(target.parent)
    done.first, done.next = looked.view.first, looked.view.next
    done.partitions = done.new_partitions = len(looked.view.partitions)
    done.problem = "it is damaged, and so is its copy"


def _copy_to_go_on_with(
    source: Path, target: Path, looked: Looked, partitions: list[Partition]
) -> tuple[TopicCopy | None, str]:
    """The copy there is, or a new one under a hidden name; or why neither will do."""
    state = replace(looked.state, clean=False)
    meta = (source / META).read_bytes()
    visible = TopicCopy.open(target, state)
    if visible is not None and visible.trouble:
        return None, visible.trouble
    problem = None
    if visible is not None and visible.id == looked.id:
        problem = _why_not(visible, partitions)
    _check_is_still(source, looked.id)  # else `meta`, or what was compared, is another topic's
    if problem is not None:
        return (None, problem) if problem else (visible, "")
    hidden_path = target.with_name(HIDDEN + target.name)
    hidden = TopicCopy.open(hidden_path, state)
    if hidden is not None and hidden.id == looked.id and _why_not(hidden, partitions) == "":
        return hidden, ""
    shutil.rmtree(hidden_path, ignore_errors=True)
    return TopicCopy.create(hidden_path, meta, _empty(state, partitions[0])), ""


def _empty(state: CheckpointState, first: Partition) -> CheckpointState:
    at = first.first
    return replace(state, first=at, partition=at, position=0, next=at, sequence=0)


def _why_not(copy: TopicCopy, partitions: list[Partition]) -> str | None:
    """Why a copy cannot be gone on with: "" if it can, None if all of it has expired meanwhile."""
    if copy.trouble:
        return copy.trouble
    ours = {partition.first: partition for partition in partitions}.get(copy.state.partition)
    if ours is None and copy.state.next <= partitions[0].first:
        return None
    if ours is None or not same_bytes(ours.file, copy.active_file(), copy.state.position):
        return (
            f"its copy has other messages than it has, before offset {copy.state.next}; back up"
            " into another directory, and look at both"
        )
    return ""


def _held(source: Path, topic_id: str, partitions: list[Partition]) -> Iterator[Partition]:
    """One after the other, each opened long before its turn and closed behind it."""
    for i, partition in enumerate(partitions):
        for ahead in partitions[i : i + _HELD_OPEN]:
            assert ahead.file  # opens it
        _check_is_still(source, topic_id)
        yield partition
        partition.close()


def _check_is_still(source: Path, topic_id: str) -> None:
    """Is it no other topic of the same name? Then files that were opened before this are its."""
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
    """Give a new copy its name; what had it before goes, or aside if it is of another topic."""
    old = target.with_name(f"{HIDDEN}.old-{target.name}")  # a start removes what begins like this
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        former_id = read_meta(target)[0]
        if former_id != copy.id:
            old = _place_aside(target, former_id or "unknown")
        disk.rename(target, old)
        disk.sync_directory(old.parent)
    disk.rename(copy.directory, target)
    disk.sync_directory(target.parent)
    copy.moved_to(target)
    if old.parent == target.parent:
        shutil.rmtree(old, ignore_errors=True)


def _place_aside(target: Path, former_id: str) -> Path:
    """Where the copy of a topic goes that has another one's name; each time another place."""
    directory = target.parent.parent / FORMER
    disk.make_directories(directory)
    suffixes = chain([""], map("-{}".format, count(2)))
    names = (f"{target.name}-{former_id}{suffix}" for suffix in suffixes)
    return next(directory / name for name in names if not (directory / name).exists())


def _count(copy: TopicCopy, partitions: list[Partition], done: Copied) -> None:
    """What there is now, and whether the files that were copied before are still as they were."""
    done.first, done.next = copy.state.first, copy.state.next
    done.partitions = len(partitions)
    for partition in partitions:
        path = copy.directory / partition.path.name
        size = path.stat().st_size if path.exists() else -1
        done.bytes += max(0, size)
        if size != partition.size:
            done.problem = (
                f"{partition.path.name} of its copy is not as large as its own; run log-cli check"
                " on the copy"
            )
