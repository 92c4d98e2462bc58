"""Read topics straight from a data directory, without a daemon: what `--data-dir` does.

Always: no file is written and no lock is kept, so a read-only directory will do; and what comes out
is what a daemon started on these files would answer. A torn tail is left out, damage is an error at
its offsets. Beside a running daemon it reads whole batches only, up to what was there when it
looked.
"""

from __future__ import annotations

import fcntl
import fnmatch
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

from logd.batch import GAP, MAX_NUMBER, ScannedBatch
from logd.errors import DamagedBatch, DataDirError, Faulted, NotFound, OutOfRange
from logd.offline.integrity import topic_directories
from logd.partition import Partition
from logd.repair import Damage, joined
from logd.storage.checkpoint import CheckpointState, saved_state
from logd.storage.disk import File
from logd.storage.readable_range import ReadableRange, ReadPlan
from logd.storage.recovery import (
    missing_files,
    partition_firsts,
    read_active,
    read_meta,
    read_sealed,
)
from logd.storage.topic_files import CHECKPOINT
from logd.wire.commands import Batches, TopicInfo, checked_topic, checked_where
from logd.wire.read_state import Batch, Gap, OnGap, check, split, warn_of_gap
from logd.wire.requests import Where
from logd.wire.text import counted

READ_BYTES = 1 << 20
_LOOKS = 10  # at files that a daemon changes meanwhile


class Looked(NamedTuple):
    """A topic's files as they were found."""

    id: str
    state: CheckpointState
    view: ReadableRange
    damages: list[Damage]
    torn: str  # what is wrong with the newest file's end; "" where it is whole


def look(directory: Path) -> Looked:
    """Find out what a topic holds. Looks again where a daemon has changed the files meanwhile."""
    for _ in range(_LOOKS):
        before = _seen(directory)
        try:
            looked = _look(directory, before[1])
        except FileNotFoundError:  # expired between the listing and the opening of it
            if not directory.exists():
                raise NotFound(f"{directory} was removed while it was read") from None
            continue
        now = _seen(directory)
        if now == before or (now[0] == before[0] and not looked.damages):
            return looked
    raise DataDirError(f"{directory} changes while it is read; ask its daemon instead, by --host")


def _seen(directory: Path) -> tuple[str, CheckpointState | None]:
    """Which topic it is, and its checkpoint: what changes before anything is taken away."""
    return read_meta(directory)[0], _state(directory)


def _state(directory: Path) -> CheckpointState | None:
    try:
        return saved_state(File(directory / CHECKPOINT))
    except FileNotFoundError:
        return None


def _look(directory: Path, state: CheckpointState | None) -> Looked:
    topic_id, damages = read_meta(directory)
    if state is None:
        damages.append(Damage(0, 0, CHECKPOINT, 0, 0, "neither of its slots is sound"))
        state = CheckpointState(clean=False)
    firsts = partition_firsts(directory, state)
    damages += missing_files(firsts, state)
    view = ReadableRange(_OneOpen().mark_used)
    for first, next_ in pairwise(firsts):
        partition = Partition.open_read_only(directory, first, next_)
        damages += read_sealed(partition)[1]
        partition.release()
        view.add(partition)
    torn = ""
    if firsts:
        active = Partition.open_read_only(directory, firsts[-1], firsts[-1])
        active.sealed = False
        view.add(active)
        found, torn = _look_at_active(active, state)
        damages += found
        view.set_end(active.next, active.size)
    view.exclude(joined(damages))
    damaged_to = max((damage.next for damage in damages), default=0)
    view.set_end(max(view.next, damaged_to), active.size if firsts else 0)
    return Looked(topic_id, state, view, damages, torn)


def _look_at_active(active: Partition, state: CheckpointState) -> tuple[list[Damage], str]:
    size = active.size
    clean = state.clean and (state.partition, state.position) == (active.first, size)
    result, damages = read_active(active, state, clean)
    if result.torn is None or damages:
        return damages, ""
    torn = counted(size - result.end, "byte")
    why = result.torn.reason
    return [], f"{active.path.name} ends in {torn} behind the last whole batch ({why})"


class _OneOpen:
    """Reading goes from file to file: the one before it is not needed any more."""

    def __init__(self) -> None:
        self._open: Partition | None = None

    def mark_used(self, partition: Partition) -> None:
        if self._open is not None and self._open is not partition:
            self._open.release()
        self._open = partition


def in_use(data_dir: Path) -> bool:
    """Does a daemon hold this directory? Asked without keeping the lock."""
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
            view = look(directory).view
            row = (view.first, view.next, view.size, len(view.partitions))
            rows.append(TopicInfo(directory.name, *row))
    return rows


def stats(data_dir: Path, topic: str | None = None) -> dict[str, str]:
    """What the files tell of what STATS tells."""
    if topic is not None:
        return _topic_stats(_topic_directory(data_dir, topic))
    found = [look(directory) for directory in topic_directories(data_dir, [])]
    counts = {
        "topics": len(found),
        "faulted_topics": sum(bool(looked.damages) for looked in found),
        "bytes": sum(looked.view.size for looked in found),
    }
    return {name: str(count) for name, count in counts.items()}


def _topic_stats(directory: Path) -> dict[str, str]:
    looked = look(directory)
    view, state = looked.view, looked.state
    values = {
        "topic": directory.name,
        "id": looked.id,
        "first": view.first,
        "next": view.next,
        "bytes": view.size,
        "partitions": len(view.partitions),
        "epoch": state.epoch,
        "epoch_began": state.began,
        "damages": len(looked.damages),
        "clean": int(state.clean and not looked.torn),
    }
    return {name: str(value) for name, value in values.items()}


def _topic_directory(data_dir: Path, topic: str) -> Path:
    name = checked_topic(topic)
    for directory in topic_directories(data_dir, []):
        if directory.name == name:
            return directory
    raise NotFound(f"{data_dir} has no topic {name}")


def look_at(data_dir: Path, topic: str) -> Looked:
    return look(_topic_directory(data_dir, topic))


def read_plan(plan: ReadPlan) -> Batches:
    """The bytes of a planned read, as a daemon would send them."""
    parts = [part.file.read_waiting(part.position, part.size) for part in plan.slices]
    return Batches(plan.offset, plan.messages, bytearray(b"".join(parts)))


class DirectoryReader:
    """A `Reader` over files: the same arguments where they make sense, and the same batches."""

    def __init__(
        self,
        data_dir: Path,
        topic: str,
        *,
        start: Where = "first",
        tail: int | None = None,
        limit: int | None = None,
        until: int | None = None,
        until_ms: int | None = None,
        or_first: bool = False,
        on_gap: OnGap = warn_of_gap,
    ) -> None:
        self._looked = look_at(data_dir, topic)
        self._view = self._looked.view
        self._start, self._tail = checked_where(start), tail
        self._left = MAX_NUMBER if limit is None else limit
        self._until = MAX_NUMBER if until is None else until
        self._until_ms = MAX_NUMBER if until_ms is None else until_ms
        self._or_first, self._on_gap = or_first, on_gap
        self._at = 0  # the offset that is read next

    @property
    def torn(self) -> str:
        """What is wrong with the end of the newest file; "" where it is whole."""
        return self._looked.torn

    @property
    def first(self) -> int:
        return self._view.first

    @property
    def next(self) -> int:
        return self._view.next

    @property
    def bytes(self) -> int:
        return self._view.size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to do: a file closes itself once nobody refers to it."""

    def batches(self) -> Iterator[Batch]:
        with self._naming_offsets():
            self._at = self._resolve()
            while self._left > 0 and self._at < min(self._until, self.next):
                wanted = min(self._left, self._until - self._at)
                plan = self._view.plan(self._at, wanted, READ_BYTES)
                for found in check(read_plan(plan)):
                    if found.header.time_ms >= self._until_ms:  # times never go back
                        return
                    yield from self._cut(found)

    def _resolve(self) -> int:
        if self._tail is not None:
            return max(self.first, self.next - self._tail)
        if self._or_first and isinstance(self._start, int) and self._start < self.first:
            skipped = self.first - self._start
            self._on_gap(Gap(self._start, skipped, "they have expired"))
            return self.first
        self._at = self._start if isinstance(self._start, int) else self.first
        return self._view.resolve(self._start)

    def _cut(self, found: ScannedBatch) -> Iterator[Batch]:
        start = max(self._at, found.header.offset)
        stop = min(found.header.next, self._until, start + self._left)
        if found.header.enc == GAP:
            self._on_gap(Gap(start, found.header.next - start, "they were lost on disk"))
            self._at = found.header.next
        elif start < stop:
            batch = split(found, start, stop)
            self._at, self._left = stop, self._left - (stop - start)
            yield batch

    @contextmanager
    def _naming_offsets(self) -> Iterator[None]:
        """Say at which offset files turned out damaged, or went away."""
        try:
            yield
        except DamagedBatch as error:
            if self._is_behind_the_last_sync():
                return  # it was sound when it was looked at: a write that failed, cut off since
            raise Faulted(
                f"offset {self._at} or one behind it is damaged: {error.text};"
                " `log-cli check` says how far it goes"
            ) from None
        except FileNotFoundError:
            raise OutOfRange(f"offset {self._at} expired while it was read") from None

    def _is_behind_the_last_sync(self) -> bool:
        """Of the newest file, that is what the look has checked against its sums."""
        newest = max(self._view.partitions, default=0)
        return self._at >= max(newest, self._looked.state.next)
