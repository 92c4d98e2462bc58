"""Make the newest partition sound again after a stop that was not clean.

Reads with the one scanner. What is sound is kept; the bytes from the first bad batch at or behind
the checkpoint are a torn tail: copied to `quarantine/`, synced, and only then cut. Damage before
the checkpoint is never touched. Killed anywhere and run again, it ends in the same log.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from logd import disk
from logd.batch import Header, scan
from logd.disk import File
from logd.errors import DamagedBatch

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Report:
    """What a recovery found and did."""

    topic: str
    partition: str
    kept_bytes: int
    cut_bytes: int = 0
    reason: str = ""
    quarantine: Path | None = None


@dataclass(frozen=True, slots=True)
class Sound:
    """The sound part of a partition: headers with their positions, and where it ends."""

    headers: list[tuple[int, Header]]
    end: int
    damage: DamagedBatch | None


def read_sound(file: File, first: int, checked_to: int, from_: int = 0) -> Sound:
    """Walk the file: only headers up to `checked_to`, which is known durable; all of it behind."""
    headers: list[tuple[int, Header]] = []
    size = file.size()
    position, expect, since_ms = from_, first, 0
    try:
        for end, bodies in ((min(checked_to, size), False), (size, True)):
            for found in scan(
                file.read_waiting, position, end, bodies=bodies, expect=expect, since_ms=since_ms
            ):
                headers.append((found.position, found.header))
                position, expect, since_ms = found.end, found.header.next, found.header.time_ms
    except DamagedBatch as damage:
        return Sound(headers, position, damage)
    return Sound(headers, position, None)


def cut_tail(path: Path, file: File, end: int, quarantine: Path) -> Path:
    """Move the bytes from `end` on aside, then cut them off. Returns where they are now."""
    quarantine.mkdir(mode=0o700, exist_ok=True)
    disk.sync_directory(quarantine.parent)
    copy = quarantine / f"{path.stem}-{end}-{time.time_ns()}"
    target = disk.create(copy)
    position = end
    while data := file.read_waiting(position, _COPY_BYTES):
        disk.write_at(target, [data], position - end)
        position += len(data)
    disk.sync(target)
    disk.sync_directory(quarantine)
    disk.cut(file, end)
    disk.sync(file)
    return copy
