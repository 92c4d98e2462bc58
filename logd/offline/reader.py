"""Read topics from a data directory without a daemon: the `--data-dir` option of `log-cli`.

Always: no file is written and no lock is held, so a read-only directory is sufficient; the result
is what a daemon started on these files would return. A torn tail is left out, damage is an error at
its offsets. While a daemon is running, only whole batches are read, up to the end of the log at the
time of the snapshot.
"""

from __future__ import annotations

import fcntl
import fnmatch
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self, Unpack

from logd.errors import DamagedBatch, DataDirError, Faulted, NotFound, OutOfRange
from logd.offline.integrity import topic_directories
from logd.partition import Partition
from logd.repair import Damage, merge_damages
from logd.storage.checkpoint import CheckpointState, saved_state
from logd.storage.disk import File
from logd.storage.readable_range import OpenPartitions, ReadableRange, ReadPlan
from logd.storage.recovery import read_active, read_layout, read_meta, read_sealed
from logd.storage.topic_files import CHECKPOINT
from logd.wire.commands import Batches, TopicInfo, checked_topic
from logd.wire.read_state import Batch, ReadOptions, ReadState
from logd.wire.requests import Read, Tail, Where
from logd.wire.text import counted

READ_BYTES = 1 << 20
_MAX_TRIES = 10  # if a daemon changes the files meanwhile


class TopicSnapshot(NamedTuple):
    """The files of a topic at one moment."""

    id: str
    state: CheckpointState
    readable: ReadableRange
    damages: list[Damage]
    torn: str  # what is wrong with the end of the newest partition, or ""


def take_snapshot(directory: Path) -> TopicSnapshot:
    """Read what a topic holds; again if a daemon has changed the files meanwhile."""
    for _ in range(_MAX_TRIES):
        before = _version(directory)
        try:
            snapshot = _take_snapshot(directory, before[1])
        except FileNotFoundError:  # it expired after it was listed
            if not directory.exists():
                raise NotFound(f"{directory} was removed while it was being read") from None
            continue
        now = _version(directory)
        if now == before or (now[0] == before[0] and not snapshot.damages):
            return snapshot
    raise DataDirError(
        f"{directory} keeps changing while it is read; use the daemon instead, with --host"
    )


def _version(directory: Path) -> tuple[str, CheckpointState | None]:
    """The topic's id and its checkpoint, which changes before any file is deleted."""
    return read_meta(directory)[0], _state(directory)


def _state(directory: Path) -> CheckpointState | None:
    try:
        return saved_state(File(directory / CHECKPOINT))
    except FileNotFoundError:
        return None


def _take_snapshot(directory: Path, state: CheckpointState | None) -> TopicSnapshot:
    topic_id, state, firsts, damages = read_layout(directory, state)
    readable = ReadableRange(OpenPartitions(1).mark_used)
    for first, next_ in pairwise(firsts):
        partition = Partition.open_read_only(directory, first, next_)
        damages += read_sealed(partition)[1]
        partition.release()
        readable.add(partition)
    torn = ""
    if firsts:
        active = Partition.open_read_only(directory, firsts[-1], firsts[-1])
        active.sealed = False
        readable.add(active)
        found, torn = _read_active(active, state)
        damages += found
        readable.set_end(active.next, active.size)
    readable.exclude(merge_damages(damages))
    damaged_to = max((damage.next for damage in damages), default=0)
    readable.set_end(max(readable.next, damaged_to), active.size if firsts else 0)
    return TopicSnapshot(topic_id, state, readable, damages, torn)


def _read_active(active: Partition, state: CheckpointState) -> tuple[list[Damage], str]:
    size = active.size
    clean = state.clean and (state.partition, state.position) == (active.first, size)
    result, damages = read_active(active, state, clean)
    if result.torn is None or damages:
        return damages, ""
    torn = counted(size - result.end, "byte")
    why = result.torn.reason
    return [], f"{active.path.name} ends in {torn} after the last whole batch ({why})"


def in_use(data_dir: Path) -> bool:
    """Is a daemon using this directory? Does not keep the lock."""
    try:
        lock = File(data_dir / "lock")
        fcntl.flock(lock.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def topics(data_dir: Path, glob: str = "*") -> list[TopicInfo]:
    rows = []
    for directory in topic_directories(data_dir, []):
        if fnmatch.fnmatchcase(directory.name, glob):
            readable = take_snapshot(directory).readable
            row = (readable.first, readable.next, readable.size, len(readable.partitions))
            rows.append(TopicInfo(directory.name, *row))
    return rows


def stats(data_dir: Path, topic: str | None = None) -> dict[str, str]:
    """The values of STATS that the files contain."""
    if topic is not None:
        return _topic_stats(_topic_directory(data_dir, topic))
    found = [take_snapshot(directory) for directory in topic_directories(data_dir, [])]
    counts = {
        "topics": len(found),
        "faulted_topics": sum(bool(snapshot.damages) for snapshot in found),
        "bytes": sum(snapshot.readable.size for snapshot in found),
    }
    return {name: str(count) for name, count in counts.items()}


def _topic_stats(directory: Path) -> dict[str, str]:
    snapshot = take_snapshot(directory)
    readable, state = snapshot.readable, snapshot.state
    values = {
        "topic": directory.name,
        "id": snapshot.id,
        "first": readable.first,
        "next": readable.next,
        "bytes": readable.size,
        "partitions": len(readable.partitions),
        "epoch": state.epoch,
        "epoch_began": state.began,
        "damages": len(snapshot.damages),
        "clean": int(state.clean and not snapshot.torn),
    }
    return {name: str(value) for name, value in values.items()}


def _topic_directory(data_dir: Path, topic: str) -> Path:
    name = checked_topic(topic)
    for directory in topic_directories(data_dir, []):
        if directory.name == name:
            return directory
    raise NotFound(f"{data_dir} has no topic {name}")


def snapshot_of(data_dir: Path, topic: str) -> TopicSnapshot:
    return take_snapshot(_topic_directory(data_dir, topic))


def read_plan(plan: ReadPlan) -> Batches:
    """The bytes of a planned read, as a daemon would send them."""
    parts = [part.file.read_waiting(part.position, part.size) for part in plan.slices]
    return Batches(plan.offset, plan.messages, bytearray(b"".join(parts)))


class DirectoryReader:
    """A `Reader` for files: the same batches and the same options, except `follow`."""

    def __init__(self, data_dir: Path, topic: str, **options: Unpack[ReadOptions]) -> None:
        self._snapshot = snapshot_of(data_dir, topic)
        self._readable = self._snapshot.readable
        self._state = ReadState(topic, **options)
        self._at = 0  # the offset that is read next

    @property
    def torn(self) -> str:
        """What is wrong with the end of the newest partition, or ""."""
        return self._snapshot.torn

    @property
    def first(self) -> int:
        return self._readable.first

    @property
    def next(self) -> int:
        return self._readable.next

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to do: a file closes itself when it is no longer referenced."""

    def batches(self) -> Iterator[Batch]:
        with self._errors_with_offset():
            while not self._state.is_done:
                reply = self._reply(self._state.question())
                self._state.arrived(reply)
                for batch in self._state.cut(reply):
                    self._at = batch.next
                    yield batch

    def _reply(self, question: Read | Tail) -> Batches:
        """The reply of a daemon that has these files."""
        if isinstance(question, Tail):
            self._at = max(self.first, self.next - question.messages)
        else:
            self._at = self._resolve(question.where)
        return read_plan(self._readable.plan(self._at, question.messages, READ_BYTES))

    def _resolve(self, where: Where) -> int:
        self._at = where if isinstance(where, int) else self.first
        try:
            return self._readable.resolve(where)
        except OutOfRange as error:
            self._state.refused(error)
            return self._readable.resolve(self._state.where)

    @contextmanager
    def _errors_with_offset(self) -> Iterator[None]:
        """Add the offset to errors about damaged or removed files."""
        try:
            yield
        except DamagedBatch as error:
            if self._is_after_checkpoint():
                return  # a failed write that the daemon has cut off since the snapshot
            raise Faulted(
                f"offset {self._at} or a later one is damaged: {error.text};"
                " `log-cli check` reports its extent"
            ) from None
        except FileNotFoundError:
            raise OutOfRange(f"offset {self._at} expired while it was being read") from None

    def _is_after_checkpoint(self) -> bool:
        """Only these batches of the newest partition were checked by the snapshot."""
        newest = max(self._readable.partitions, default=0)
        return self._at >= max(newest, self._snapshot.state.next)
