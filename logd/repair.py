"""Find damage in a topic's files, and make them sound again.

Reads with the one scanner. Two kinds of damage are told apart. A torn tail is what a crash leaves:
the bytes of the newest partition from the first bad batch at or behind the checkpoint; it is copied
to `quarantine/`, synced, and only then cut. Anything else is damage to data that was once safe: it
is reported, and never touched unless its loss is accepted; then a `gap` batch takes its place, and
what it replaced is in `quarantine/`. Behind damage reading goes on only where the index says a
batch starts, because a payload can hold forged headers. Killed anywhere and run again, a repair
ends in the same log.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from logd.batch import GAP, MAX_NUMBER, ScannedBatch, body_sum, encode_header, parse_header, scan
from logd.errors import DamagedBatch
from logd.storage import disk
from logd.storage.disk import File
from logd.storage.index import BadIndex, Index, IndexEntry

SEALED = 1 << 62  # `safe_to` of a partition that was synced as a whole
_COPY_BYTES = 1 << 20
_WINDOW_BYTES = 4 << 20


class Damage(NamedTuple):
    """Messages that cannot be read: their offsets, where they were, and why.

    `position` to `end` are the bytes in the file of that name; both 0 where the file is not there.
    """

    first: int
    next: int
    file: str
    position: int
    end: int
    reason: str
    time_ms: int = 0  # that a gap in its place may have

    def __str__(self) -> str:
        place = f"{self.file} bytes {self.position} to {self.end}" if self.end else self.file
        if self.next <= self.first:
            return f"{place}: {self.reason}"
        return f"offsets {self.first} to {self.next - 1} are damaged: {place}: {self.reason}"


def merge_damages(damages: Sequence[Damage]) -> tuple[Damage, ...]:
    """In order, with those that touch made one: what a reader cannot get past in one step."""
    result: list[Damage] = []
    for damage in sorted(damages):
        if damage.next <= damage.first:
            continue
        if result and damage.first <= result[-1].next:
            result[-1] = result[-1]._replace(next=max(damage.next, result[-1].next))
        else:
            result.append(damage)
    return tuple(result)


class LostRange(NamedTuple):
    """Offsets from `first` up to `next` that a gap batch stands for: accepted as lost earlier."""

    first: int
    next: int


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was found in a topic, and what was done about it. `messages` are those there are."""

    topic: str
    kept_bytes: int = 0
    messages: int = 0
    cut_bytes: int = 0
    cut_reason: str = ""
    quarantine: list[str] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    filled: list[Damage] = field(default_factory=list)  # damages that a gap stands for now
    gaps: list[LostRange] = field(default_factory=list)  # that were there before


@dataclass(slots=True)
class PartitionScan:
    """What one partition file holds: its sound batches, indexed, and the damage between them."""

    index: Index
    next: int
    end: int = 0  # behind the last sound batch
    time_ms: int = 0
    damages: list[Damage] = field(default_factory=list)
    torn: DamagedBatch | None = None  # why everything from `end` on is not sound


def scan_partition(
    file: File,
    name: str,
    first: int,
    *,
    known: Index | None = None,
    safe_to: int = SEALED,
    until: int = MAX_NUMBER,
    epoch: tuple[int, int] = (0, 0),
    bodies: bool = True,
    since_ms: int = 0,
    start: IndexEntry | None = None,
    on_batch: Callable[[ScannedBatch], None] = lambda found: None,
) -> PartitionScan:
    """Walk a partition file, with bodies or, below `safe_to`, by headers alone.

    `known` is an index from before the damage, if there is one. It says where to go on behind
    damage below `safe_to`, the place up to which the file is known durable: what is not sound
    behind that is a torn tail as a whole. No offset from `until` on belongs here. `epoch` is the
    offset and the time at which the last one began: what is older behind it was lost in a crash
    before, and came back with the disk block it once stood in. What is before `start`, an entry of
    `known`, is believed.
    """
    size = file.size()
    result = PartitionScan(Index(), first, time_ms=since_ms)
    if start is not None and known is not None:
        result = PartitionScan(known, start.offset, start.position, start.time_ms)
    while result.end < size:
        try:
            _walk(file, size, 0 if bodies else safe_to, until, epoch, result, on_batch)
        except DamagedBatch as damage:
            resume = _next_indexed_batch(file, known, result) if result.end < safe_to else None
            if resume is None:
                result.torn = damage
                break
            result.damages.append(
                Damage(
                    result.next, resume.offset, name, result.end, resume.position, damage.reason,
                    result.time_ms or resume.time_ms,
                )
            )  # fmt: skip
            result.index.append(resume)
            result.next, result.end = resume.offset, resume.position
    return result


def _walk(
    file: File,
    size: int,
    checked_to: int,
    until: int,
    epoch: tuple[int, int],
    result: PartitionScan,
    on_batch: Callable[[ScannedBatch], None],
) -> None:
    for stop, bodies in ((min(checked_to, size), False), (size, True)):
        if result.end >= stop:
            continue
        for found in scan(
            file.read_waiting, result.end, stop, bodies=bodies, expect=result.next,
            since_ms=result.time_ms, window_bytes=_WINDOW_BYTES if bodies else 1 << 16,
        ):  # fmt: skip
            header = found.header
            if header.next > until:
                raise DamagedBatch("offsets that the next file has too", found.position)
            if header.offset >= epoch[0] and header.time_ms < epoch[1] and header.enc != GAP:
                raise DamagedBatch("a batch from before the last crash", found.position)
            result.index.note(header.offset, found.position, header.time_ms)
            result.next, result.end, result.time_ms = header.next, found.end, header.time_ms
            on_batch(found)


def _next_indexed_batch(
    file: File, known: Index | None, result: PartitionScan
) -> IndexEntry | None:
    """The first place behind the damage where the index lists a batch, and there is one."""
    for i in range(len(known) if known else 0):
        try:
            entry = known.entry(i)  # type: ignore[union-attr]
        except BadIndex:
            continue
        if entry.position > result.end and entry.offset > result.next:
            header = parse_header(file.read_waiting(entry.position, 1024))
            if header is not None and header.offset == entry.offset:
                return entry
    return None


# -- changing files -----------------------------------------------------------------------------


def copy_to_quarantine(file: File, position: int, end: int, directory: Path, name: str) -> str:
    """Copy bytes of a file into `quarantine/`, synced. Returns the copy's name."""
    quarantine = directory / "quarantine"
    disk.refuse_link(quarantine)
    if not quarantine.exists():
        disk.make_directory(quarantine)
        disk.sync_directory(directory)
    temporary = quarantine / ".new"
    temporary.unlink(missing_ok=True)  # of an attempt that was interrupted
    target = disk.create(temporary)
    try:
        _copy(file, position, end, target)
        disk.sync(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    copy = _name_for(target, quarantine / f"{Path(name).stem}-{position}-{end}")
    disk.rename(temporary, copy)
    disk.sync_directory(quarantine)
    return copy.name


def _copy(file: File, position: int, end: int, target: File) -> None:
    """Append these bytes of one file to another."""
    size = target.size()
    while position < end:
        data = file.read_waiting(position, min(_COPY_BYTES, end - position))
        if not data:
            raise OSError(errno.EIO, "the file is shorter than it was")
        disk.write_at(target, [data], size)
        position, size = position + len(data), size + len(data)


def _name_for(copy: File, path: Path) -> Path:
    """A name that no other copy has, unless it is of the very same bytes."""
    for name in chain([path], (path.with_name(f"{path.name}-{n}") for n in count(2))):
        if not name.exists() or _equal(copy, File(name)):
            return name
    raise AssertionError("unreachable")


def _equal(one: File, other: File) -> bool:
    size = one.size()
    return size == other.size() and all(
        one.read_waiting(at, _COPY_BYTES) == other.read_waiting(at, _COPY_BYTES)
        for at in range(0, size, _COPY_BYTES)
    )


def cut_tail(file: File, end: int, directory: Path, name: str) -> str:
    """Move the bytes from `end` on aside, then cut them off. Returns the copy's name."""
    copy = copy_to_quarantine(file, end, file.size(), directory, name)
    disk.cut(file, end)
    disk.sync(file)
    return copy


def gap(damage: Damage) -> bytes:
    """The batch that stands for messages whose loss was accepted."""
    messages = damage.next - damage.first
    return encode_header(damage.first, messages, 0, damage.time_ms, GAP, body_sum(b""))


def fill_gaps(path: Path, damages: list[Damage]) -> list[str]:
    """Replace a file's damaged bytes by gap batches, all at once. Returns the copies' names."""
    file = File(path)
    copies = [
        copy_to_quarantine(file, damage.position, damage.end, path.parent, path.name)
        for damage in damages
        if damage.end > damage.position
    ]
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    target = disk.create(temporary)
    try:
        _copy_around(file, damages, target)
        disk.sync(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
    return copies


def _copy_around(file: File, damages: list[Damage], target: File) -> None:
    """Copy what is sound, with a gap for what is not."""
    position = 0
    for damage in damages:
        _copy(file, position, damage.position, target)
        if damage.next > damage.first:
            disk.write_at(target, [gap(damage)], target.size())
        position = damage.end
    _copy(file, position, file.size(), target)
