"""What is remembered of each file: which one it is, and how far it was read.

The snapshot on disk is older than the spool. Behind it stand the notes of the batches in the spool:
each says how far the sources of its lines were read. A batch and its note reach the disk together,
so applying the notes to the snapshot gives positions that agree with the batches exactly. Positions
in notes are absolute: applying one twice, or one that the snapshot has already, changes nothing.

Two threads meet here: the reader moves positions, and the sender saves the snapshot before it
removes batches. `Register.lock` guards which sources there are; never held while anything waits.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple

from logd.forward.file_content import Content, Head, Identity, Stamp, check_of

MAX_NOTE_BYTES = 300
NO_NOTE = "-"
_NOTE = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9a-f]{8})", re.ASCII)


class ForwardState(StrEnum):
    live = "live"  # it is, as far as is known, the file at its path
    away = "away"  # renamed, copied or compressed; not yet known to be at its end
    done = "done"  # read to its end, and let go of


class FileMark(NamedTuple):
    """How far: a position, and the sum of the last bytes before it. One value, moved at once."""

    position: int
    check: str


START = FileMark(0, check_of(b""))
NOT_SEEN = Stamp(-1, -1)
JUST_NOW = inf  # a time that has not come, until the clock is read


@dataclass(slots=True, eq=False)
class SourceFile:
    """One file's life, whatever it is called. `base` is the path that it was, or would be, at."""

    id: int
    base: str
    identity: Identity
    mark: FileMark = START
    head: Head = ()
    mtime_ns: int = 0  # what is to be read of it, here or in a copy, is not older than this
    size: int = 0  # as last seen
    state: ForwardState = ForwardState.live
    # Not saved: how it is read at the moment.
    content: Content | None = None
    at: int = 0  # ahead of the mark while a batch is gathered
    tail: bytes = b""  # the last bytes before it
    seen: Stamp = NOT_SEEN  # at the last look
    grown_s: float = JUST_NOW  # when it last changed, by the monotonic clock
    searched: int = 0

    @property
    def is_known(self) -> bool:
        """Was anything ever in it? If not, it is known by its inode alone."""
        return bool(self.head or self.mark.position)

    def let_go(self) -> None:
        if self.content is not None:
            self.content.close()
            self.content = None


@dataclass(slots=True)
class Register:
    """All sources, and the moves that a batch on its way to the spool will make."""

    sources: dict[int, SourceFile] = field(default_factory=dict)
    next_id: int = 1
    looked_ns: int = 0  # when the file system was last looked at, by the clock of file times
    lock: threading.Lock = field(default_factory=threading.Lock)
    pending: tuple[int, dict[int, FileMark]] = (0, {})  # the number of the batch, and its moves

    def add(self, base: str, identity: Identity) -> SourceFile:
        """A new source. The snapshot has to be saved before a note names it."""
        source = SourceFile(self.next_id, base, identity)
        self.next_id += 1
        self.sources[source.id] = source
        return source

    def drop(self, source: SourceFile) -> None:
        source.let_go()
        del self.sources[source.id]

    def of(self, base: str) -> list[SourceFile]:
        return [source for source in self.sources.values() if source.base == base]

    def move(self, moves: dict[int, FileMark]) -> None:
        for id, mark in moves.items():
            if id in self.sources:  # else it was dropped since: read to its end
                self.sources[id].mark = mark

    def snapshot(self, last: int) -> dict[str, Any]:
        """Everything, as of batch `last` of the spool.

        `last` has to be read before this is called: positions may be newer than it, not older.
        """
        number, moves = self.pending
        with self.lock:
            saved = [_saved(source) for source in self.sources.values()]
            next_id, looked_ns = self.next_id, self.looked_ns
        if number <= last:  # the batch is in the spool, though the reader has not noticed yet
            for source in saved:
                mark = moves.get(source["id"])
                if mark:
                    source.update(position=mark.position, check=mark.check)
        return {"as_of": last, "looked_ns": looked_ns, "next_id": next_id, "sources": saved}


def restored(snapshot: dict[str, Any], notes: Iterable[tuple[int, str]]) -> Register:
    """The register of a snapshot, with the notes behind it applied."""
    register = Register(next_id=snapshot["next_id"], looked_ns=snapshot["looked_ns"])
    for saved in snapshot["sources"]:
        source = _restored_source(saved)
        register.sources[source.id] = source
    for _, note in notes:
        register.move(moves_of(note))
    return register


def note_of(moves: dict[int, FileMark]) -> str:
    return "at=" + ",".join(f"{id}:{mark.position}:{mark.check}" for id, mark in moves.items())


def moves_of(note: str) -> dict[int, FileMark]:
    """What a note says; nothing if it is not one of ours."""
    if not note.startswith("at="):
        return {}
    found = map(_NOTE.fullmatch, note[3:].split(","))
    return {int(match[1]): FileMark(int(match[2]), match[3]) for match in found if match}


def _saved(source: SourceFile) -> dict[str, Any]:
    return {
        "id": source.id,
        "path": source.base,
        "device": source.identity[0],
        "inode": source.identity[1],
        "position": source.mark.position,
        "check": source.mark.check,
        "head": source.head,
        "mtime_ns": source.mtime_ns,
        "size": source.size,
        "state": source.state,
    }


def _restored_source(saved: dict[str, Any]) -> SourceFile:
    return SourceFile(
        saved["id"],
        saved["path"],
        (saved["device"], saved["inode"]),
        FileMark(saved["position"], saved["check"]),
        tuple(saved["head"]),
        saved["mtime_ns"],
        saved["size"],
        ForwardState(saved["state"]),
    )
