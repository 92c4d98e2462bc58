"""The registry: the known files and how far each was read.

The snapshot on disk is older than the spool. Each batch in the spool has a note with the positions
that were reached by reading its lines. A batch and its note are written together, so applying the
notes to the snapshot gives exactly the positions of the batches. Positions in notes are absolute:
applying a note again changes nothing.

The reading thread advances positions; the sending thread saves the snapshot before it removes
batches. `Registry.lock` protects the set of files and is never held while waiting.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple

from logd.forward.file_content import Content, Fingerprint, Identity, Stamp, checksum_of

MAX_NOTE_BYTES = 300
_NOTE = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9a-f]{8})", re.ASCII)


class FileState(StrEnum):
    current = "live"  # the file at its path, as far as is known
    rotated = "away"  # renamed, copied or compressed; it may still have lines to read
    finished = "done"  # read to its end and closed


class FileCheckpoint(NamedTuple):
    """A position, and the checksum of the last bytes before it. Always replaced together."""

    position: int
    checksum: str


START = FileCheckpoint(0, checksum_of(b""))
NOT_SEEN = Stamp(-1, -1)
JUST_NOW = inf  # a time in the future, until the clock is read


@dataclass(slots=True, eq=False)
class SourceFile:
    """A file, whatever its current name is. `base` is its path before rotation."""

    id: int
    base: str
    identity: Identity
    checkpoint: FileCheckpoint = START
    fingerprint: Fingerprint = ()
    mtime_ns: int = 0  # its unread lines, here or in a copy, are not older than this
    size: int = 0  # as last seen
    state: FileState = FileState.current
    # Not saved: the state of reading.
    content: Content | None = None
    at: int = 0  # ahead of the checkpoint while a batch is collected
    tail: bytes = b""  # the last bytes before `at`
    seen: Stamp = NOT_SEEN  # at the last refresh
    grown_s: float = JUST_NOW  # when it last changed, by the monotonic clock
    searched: int = 0

    @property
    def is_known(self) -> bool:
        """Whether it ever had content. Otherwise only its inode identifies it."""
        return bool(self.fingerprint or self.checkpoint.position)

    def close(self) -> None:
        if self.content is not None:
            self.content.close()
            self.content = None


@dataclass(slots=True)
class Registry:
    """All files, and the checkpoints of the batch that is being written to the spool."""

    sources: dict[int, SourceFile] = field(default_factory=dict)
    next_id: int = 1
    looked_ns: int = 0  # when paths were last expanded, by the clock of file times
    lock: threading.Lock = field(default_factory=threading.Lock)
    pending: tuple[int, dict[int, FileCheckpoint]] = (0, {})  # number of the batch, checkpoints

    def add(self, base: str, identity: Identity) -> SourceFile:
        """A new file. The snapshot must be saved before a note contains it."""
        source = SourceFile(self.next_id, base, identity)
        self.next_id += 1
        self.sources[source.id] = source
        return source

    def drop(self, source: SourceFile) -> None:
        source.close()
        del self.sources[source.id]

    def of(self, base: str) -> list[SourceFile]:
        return [source for source in self.sources.values() if source.base == base]

    def advance(self, checkpoints: dict[int, FileCheckpoint]) -> None:
        for id, checkpoint in checkpoints.items():
            if id in self.sources:  # else it was read to its end and removed
                self.sources[id].checkpoint = checkpoint

    def snapshot(self, last: int) -> dict[str, Any]:
        """The snapshot as of batch `last` of the spool.

        `last` must be read before this call: positions may be newer than it, but not older.
        """
        number, checkpoints = self.pending
        with self.lock:
            saved = [_saved(source) for source in self.sources.values()]
            next_id, looked_ns = self.next_id, self.looked_ns
        if number <= last:  # the batch is in the spool, but `push` has not returned yet
            for source in saved:
                checkpoint = checkpoints.get(source["id"])
                if checkpoint:
                    source.update(position=checkpoint.position, check=checkpoint.checksum)
        return {"as_of": last, "looked_ns": looked_ns, "next_id": next_id, "sources": saved}


def restored(snapshot: dict[str, Any], notes: Iterable[tuple[int, str]]) -> Registry:
    """The registry of a snapshot, after applying the notes of later batches."""
    registry = Registry(next_id=snapshot["next_id"], looked_ns=snapshot["looked_ns"])
    for saved in snapshot["sources"]:
        source = _restored_source(saved)
        registry.sources[source.id] = source
    for _, note in notes:
        registry.advance(decode_note(note))
    return registry


def encode_note(checkpoints: dict[int, FileCheckpoint]) -> str:
    return "at=" + ",".join(f"{id}:{at}:{checksum}" for id, (at, checksum) in checkpoints.items())


def decode_note(note: str) -> dict[int, FileCheckpoint]:
    """The checkpoints in a note; empty if it is not a note of the forwarder."""
    if not note.startswith("at="):
        return {}
    found = map(_NOTE.fullmatch, note[3:].split(","))
    return {int(match[1]): FileCheckpoint(int(match[2]), match[3]) for match in found if match}


def _saved(source: SourceFile) -> dict[str, Any]:
    return {
        "id": source.id,
        "path": source.base,
        "device": source.identity[0],
        "inode": source.identity[1],
        "position": source.checkpoint.position,
        "check": source.checkpoint.checksum,
        "head": source.fingerprint,
        "mtime_ns": source.mtime_ns,
        "size": source.size,
        "state": source.state,
    }


def _restored_source(saved: dict[str, Any]) -> SourceFile:
    return SourceFile(
        saved["id"],
        saved["path"],
        (saved["device"], saved["inode"]),
        FileCheckpoint(saved["position"], saved["check"]),
        tuple(saved["head"]),
        saved["mtime_ns"],
        saved["size"],
        FileState(saved["state"]),
    )
