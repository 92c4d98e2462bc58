"""Find damage in the files of a topic, and repair them.

Uses the one scanner. There are two kinds of damage. A torn tail is what a crash leaves: the bytes
of the newest partition from the first bad batch after the checkpoint. It is copied to
`quarantine/`, synced, and then cut off. All other damage concerns data that was safely on disk: it
is reported, and changed only if its loss is accepted; then a `gap` batch replaces it, and the
replaced bytes are in `quarantine/`. After damage, reading continues only where the index lists a
batch, because a message can contain forged headers. A repair that was killed can be run again and
gives the same result.
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
from logd.wire.offset_ranges import OffsetRange

SEALED = 1 << 62  # `safe_to` of a partition that was synced completely
_COPY_BYTES = 1 << 20
_WINDOW_BYTES = 4 << 20


class Damage(NamedTuple):
    """Messages that cannot be read: their offsets, where they were, and why.

    `position` to `end` are the bytes in `file`; both are 0 if the file is missing.
    """

    first: int
    next: int
    file: str
    position: int
    end: int
    reason: str
    time_ms: int = 0  # of a gap that replaces it

    def __str__(self) -> str:
        place = f"{self.file} bytes {self.position} to {self.end}" if self.end else self.file
        if self.next <= self.first:
            return f"{place}: {self.reason}"
        return f"offsets {self.first} to {self.next - 1} are damaged: {place}: {self.reason}"


def merge_damages(damages: Sequence[Damage]) -> tuple[Damage, ...]:
    """Sort damages and merge adjacent ones."""
    result: list[Damage] = []
    for damage in sorted(damages):
        if damage.next <= damage.first:
            continue
        if result and damage.first <= result[-1].next:
            result[-1] = result[-1]._replace(next=max(damage.next, result[-1].next))
        else:
            result.append(damage)
    return tuple(result)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was found in a topic and what was done. `messages` counts the readable ones."""

    topic: str
    kept_bytes: int = 0
    messages: int = 0
    cut_bytes: int = 0
    cut_reason: str = ""
    quarantine: list[str] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    filled: list[Damage] = field(default_factory=list)  # damages that were replaced by a gap
    gaps: list[OffsetRange] = field(default_factory=list)  # whose loss was accepted earlier


@dataclass(slots=True)
class PartitionScan:
    """The content of a partition file: an index of its valid batches, and its damage."""

    index: Index
    next: int
    end: int = 0  # of the last valid batch
    time_ms: int = 0
    damages: list[Damage] = field(default_factory=list)
    torn: DamagedBatch | None = None  # why everything after `end` is invalid


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
    """Read a partition file, with bodies or, below `safe_to`, only the headers.

    `known` is an index from before the damage, if there is one: reading continues at its entries
    after damage below `safe_to`, the position up to which the file is known to be on disk. An
    invalid batch after `safe_to` starts a torn tail. Offsets from `until` on do not belong to this
    file. `epoch` is the offset and the time at which the last epoch began: an older batch after it
    was lost in a crash and has reappeared with its disk block. What precedes `start`, an entry of
    `known`, is not read.
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
    """The first batch after the damage that the index lists and the file has."""
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
    """Copy bytes of a file into `quarantine/` and sync them. Returns the name of the copy."""
    quarantine = directory / "quarantine"
    disk.refuse_link(quarantine)
    if not quarantine.exists():
        disk.make_directory(quarantine)
        disk.sync_directory(directory)
    temporary = quarantine / ".new"
    temporary.unlink(missing_ok=True)  # of an interrupted attempt
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
    """A name that no other copy has, unless it has the same bytes."""
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
    """Move everything after `end` to quarantine. Returns the name of the copy."""
    copy = copy_to_quarantine(file, end, file.size(), directory, name)
    disk.cut(file, end)
    disk.sync(file)
    return copy


def gap(damage: Damage) -> bytes:
    """The batch that replaces messages whose loss was accepted."""
    messages = damage.next - damage.first
    return encode_header(damage.first, messages, 0, damage.time_ms, GAP, body_sum(b""))


def fill_gaps(path: Path, damages: list[Damage]) -> list[str]:
    """Replace damage in a file by gap batches, atomically. Returns the names of the copies."""
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
    """Copy the valid bytes, with gaps in the place of damage."""
    position = 0
    for damage in damages:
        _copy(file, position, damage.position, target)
        if damage.next > damage.first:
            disk.write_at(target, [gap(damage)], target.size())
        position = damage.end
    _copy(file, position, file.size(), target)
