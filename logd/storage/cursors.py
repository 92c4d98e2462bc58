"""The file of a topic's cursors: the offset that each consumer reads next.

    cursors <number> <cursors> <lost> <sum>
    <number> <name> <offset> <time> <sum>
    ...

Lines end in LF; each has a checksum and the number of the line before it plus one. The first line
has the number of cursors, and one line for each follows. After them, moves of these cursors are
appended. A cursor that is created or removed causes a new file. Always: the new file is synced
before it replaces the old one, so no crash loses a name, and a torn tail loses moves only. A cursor
lost in a damaged file is not taken for one that never existed: `lost` records this until the loss
is accepted. Blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from logd import repair
from logd.storage import disk
from logd.storage.disk import NO_SPACE, File
from logd.wire.requests import CURSOR_NAME

CURSORS = "cursors"
_GROWN_BYTES = 64 << 10  # of moves; a file that has more, and is mostly moves, is rewritten
_HEAD = re.compile(rb"(cursors ([0-9]{1,19}) ([0-9]{1,19}) ([01]) )([0-9a-f]{16})")
_LINE = re.compile(
    rb"(([0-9]{1,19}) (%b) ([0-9]{1,19}) ([0-9]{1,19}) )([0-9a-f]{16})" % CURSOR_NAME
)


class Committed(NamedTuple):
    """A committed offset, and the time of the commit."""

    offset: int
    time_ms: int


Changes = Mapping[str, Committed | None]  # None: the cursor is removed


def lag(offset: int, next_: int) -> int:
    """How many messages the cursor has not read."""
    return max(0, next_ - offset)


def changed(cursors: Mapping[str, Committed], changes: Changes) -> dict[str, Committed]:
    both = {**cursors, **changes}
    return {name: place for name, place in both.items() if place is not None}


# -- bytes ----------------------------------------------------------------------------------------


class Decoded(NamedTuple):
    """The content of a file. `reason` says why it is invalid from `end` on; "" if it is valid."""

    cursors: dict[str, Committed]
    number: int  # of its last line
    end: int
    lost: bool  # some cursors are lost
    reason: str = ""
    is_torn: bool = False  # only moves at its end are invalid, as after a crash


def encode(cursors: Mapping[str, Committed], number: int, lost: bool) -> bytes:
    """A whole file, its lines numbered from `number`."""
    return _summed(f"cursors {number} {len(cursors)} {int(lost)} ") + moves(cursors, number)


def moves(changes: Mapping[str, Committed], number: int) -> bytes:
    return b"".join(
        _summed(f"{n} {name} {place.offset} {place.time_ms} ")
        for n, (name, place) in enumerate(changes.items(), number + 1)
    )


def _summed(text: str) -> bytes:
    return f"{text}{xxh3_64_hexdigest(text.encode())}\n".encode()


def _words(form: re.Pattern[bytes], line: bytes) -> tuple[bytes, ...] | None:
    match = form.fullmatch(line)
    if match is None or xxh3_64_hexdigest(match[1]).encode() != match[match.re.groups]:
        return None
    return match.groups()[1:-1]


def decode(data: bytes) -> Decoded:
    """The cursors, each from its newest valid line."""
    *lines, _ = data.split(b"\n")
    head = _words(_HEAD, lines[0]) if lines else None
    number, count, lost = map(int, head) if head else (0, 0, 1)
    at = end = sound_to = len(lines[0]) + 1 if head else 0
    whole = 0  # consecutive valid lines
    cursors: dict[str, Committed] = {}
    for line in lines[1:] if head else lines:
        starts_at, at = at, at + len(line) + 1
        words = _words(_LINE, line)
        if words is None or int(words[0]) <= number:
            continue  # invalid, or left from an earlier file
        if head and end == starts_at and int(words[0]) == number + 1:
            whole, end = whole + 1, at
        number, sound_to = int(words[0]), at
        cursors[words[1].decode()] = Committed(int(words[2]), int(words[3]))
    is_whole = head is not None and whole >= count
    reason = ""
    if not is_whole or end < len(data):
        place = f"line {whole + 2} is not valid" if end < len(data) else "lines are missing"
        reason = place if head else "its first line is not valid"
    is_lost = bool(lost) or len(cursors) < count
    return Decoded(
        cursors, number, end, is_lost, reason, bool(reason) and is_whole and sound_to == end
    )


# -- the file -------------------------------------------------------------------------------------


class CursorFile:
    def __init__(self, directory: Path) -> None:
        self.path = directory / CURSORS
        self.saved = Decoded({}, 0, 0, False)  # as read at the start
        self.lost = False
        self.notes: list[str] = []  # what was repaired at the start, for the daemon's log
        self.is_synced = True
        self._file: File | None = None  # since the first write of a run, which rewrites it
        self._is_stale = False  # a failed write is in it: the next write rewrites it
        self._number = self._size = self._whole_bytes = 0
        self._unsound: tuple[int, int] | None = None  # bytes to be moved to quarantine

    @classmethod
    def read(cls, directory: Path) -> CursorFile:
        """Read what is on disk, not what is only in the page cache. Changes nothing."""
        made = cls(directory)
        try:
            file = File(made.path)
        except FileNotFoundError:
            return made
        disk.sync(file)
        disk.drop_cache(file)
        made._size = file.size()
        made.saved = decode(file.read_waiting(0, made._size))
        made._number, made.lost = made.saved.number, made.saved.lost
        if made.saved.end < made._size:
            made._unsound = made.saved.end, made._size
        return made

    def damage(self) -> repair.Damage | None:
        """The damage that a check reports: anything except a torn tail."""
        reason = "" if self.saved.is_torn else self.saved.reason
        if self.lost and not reason:
            reason = "cursors were lost earlier, and the loss was not accepted"
        return repair.Damage(0, 0, CURSORS, 0, self._size, reason) if reason else None

    def make_sound(self, next_: int | None) -> None:
        """Rewrite the file if it is invalid, or if a cursor is after the end of the topic.

        The latter happens when a power failure loses messages that were read and committed. The
        cursor moves back to the end, so that it does not miss new messages with these offsets. On a
        full disk the next commit rewrites the file.
        """
        if self.saved.reason:
            lost = "; a cursor that is not known may have been lost" if self.lost else ""
            self.notes.append(f"{CURSORS}: {self.saved.reason}; the rest is used{lost}")
        for name, place in self.saved.cursors.items():
            if next_ is not None and place.offset > next_:
                self.notes.append(f"cursor {name} was at {place.offset} and is at {next_} now")
                self.saved.cursors[name] = place._replace(offset=next_)
        try:
            if self.notes:
                self._replace(self.saved.cursors)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def accept_loss(self) -> list[str]:
        """Continue with the remaining cursors. Returns the names of copies of the damaged bytes."""
        self.lost = False
        return self._replace(self.saved.cursors)

    def write(self, changes: Changes, before: Mapping[str, Committed]) -> None:
        """Store changes to `before`: moves are written, created or removed cursors also synced."""
        known = {name: place for name, place in changes.items() if place and name in before}
        has_grown = self._size - self._whole_bytes > max(_GROWN_BYTES, self._whole_bytes)
        if self._file is None or self._is_stale or has_grown or len(known) < len(changes):
            self._replace(changed(before, changes))
        else:
            self._append(self._file, known)

    def sync(self) -> None:
        if self._file is not None and not self.is_synced:
            disk.sync(self._file)
            self.is_synced = True

    def _append(self, file: File, changes: Mapping[str, Committed]) -> None:
        data = moves(changes, self._number)
        self.is_synced = False
        try:
            disk.write_at(file, [data], self._size)
        except OSError:
            self._cut_back(file)
            raise
        self._number += len(changes)
        self._size += len(data)

    def _cut_back(self, file: File) -> None:
        """A refused commit must not appear after the next start."""
        try:
            disk.cut(file, self._size)
        except OSError:
            self._is_stale = True

    def _replace(self, cursors: Mapping[str, Committed]) -> list[str]:
        copies = []
        if self._unsound is not None:
            copies = [
                repair.copy_to_quarantine(
                    File(self.path), *self._unsound, self.path.parent, CURSORS
                )
            ]
            self._unsound = None
        data = encode(cursors, self._number, self.lost)
        self._file = disk.replace(self.path, data)
        self._number += len(cursors)
        self._size = self._whole_bytes = len(data)
        self._is_stale, self.is_synced = False, True
        return copies
