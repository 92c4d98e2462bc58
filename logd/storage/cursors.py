"""The cursors of a topic, and the file that keeps them: which offset each name reads next.

    cursors <number> <cursors> <lost> <sum>
    <number> <name> <offset> <time> <sum>
    ...

Lines of text that end in LF, each with its own sum and with a number one above the line before it.
The first says how many cursors there are; that many lines follow, one for each. Behind them come
the moves of these, appended one by one. A cursor that is new, or that goes, makes a whole new file.
Always: that one is synced before it takes the old one's place, so no crash loses a name, and a tail
that is torn or cut costs moves alone. What a damaged file has lost is never taken for a cursor that
never was: `lost` says so until somebody accepts it. Blocks: runs off the loop.
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
_GROWN_BYTES = 64 << 10  # of moves; a file that has more, and is mostly moves, is made anew
_HEAD = re.compile(rb"(cursors ([0-9]{1,19}) ([0-9]{1,19}) ([01]) )([0-9a-f]{16})")
_LINE = re.compile(
    rb"(([0-9]{1,19}) (%b) ([0-9]{1,19}) ([0-9]{1,19}) )([0-9a-f]{16})" % CURSOR_NAME
)


class Committed(NamedTuple):
    """Where a cursor stands, and since when."""

    offset: int
    time_ms: int


Changes = Mapping[str, Committed | None]  # None: the cursor goes


def lag(offset: int, next_: int) -> int:
    """How many messages a cursor has before it."""
    return max(0, next_ - offset)


def changed(cursors: Mapping[str, Committed], changes: Changes) -> dict[str, Committed]:
    both = {**cursors, **changes}
    return {name: place for name, place in both.items() if place is not None}


# -- bytes ----------------------------------------------------------------------------------------


class Decoded(NamedTuple):
    """What a file holds. `reason` says why it is not sound from `end` on; empty if it is."""

    cursors: dict[str, Committed]
    number: int  # of its last line
    end: int
    lost: bool  # there were cursors of which nothing is known any more
    reason: str = ""
    is_torn: bool = False  # only moves at its end are not sound: a crash does that


def encode(cursors: Mapping[str, Committed], number: int, lost: bool) -> bytes:
    """A whole file, its lines numbered from behind `number` on."""
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
    """Each cursor by its newest line that is sound, wherever in the file the others are."""
    *lines, _ = data.split(b"\n")
    head = _words(_HEAD, lines[0]) if lines else None
    number, count, lost = map(int, head) if head else (0, 0, 1)
    at = end = sound_to = len(lines[0]) + 1 if head else 0
    whole = 0  # lines in a row from the first one on
    cursors: dict[str, Committed] = {}
    for line in lines[1:] if head else lines:
        starts_at, at = at, at + len(line) + 1
        words = _words(_LINE, line)
        if words is None or int(words[0]) <= number:
            continue  # not sound, or from another time
        if head and end == starts_at and int(words[0]) == number + 1:
            whole, end = whole + 1, at
        number, sound_to = int(words[0]), at
        cursors[words[1].decode()] = Committed(int(words[2]), int(words[3]))
    is_whole = head is not None and whole >= count
    reason = ""
    if not is_whole or end < len(data):
        place = f"line {whole + 2} is not sound" if end < len(data) else "lines are missing"
        reason = place if head else "its first line is not sound"
    is_lost = bool(lost) or len(cursors) < count
    return Decoded(
        cursors, number, end, is_lost, reason, bool(reason) and is_whole and sound_to == end
    )


# -- the file -------------------------------------------------------------------------------------


class CursorFile:
    def __init__(self, directory: Path) -> None:
        self.path = directory / CURSORS
        self.saved = Decoded({}, 0, 0, False)  # what the start found
        self.lost = False
        self.notes: list[str] = []  # what the start had to do, for the daemon's log
        self.is_synced = True
        self._file: File | None = None  # from the first write of a run on, which makes it anew
        self._is_stale = False  # it holds more than it should: the next write makes it anew
        self._number = self._size = self._whole_bytes = 0
        self._unsound: tuple[int, int] | None = None  # bytes to be set aside

    @classmethod
    def read(cls, directory: Path) -> CursorFile:
        """What is on disk, and not only in memory since a sync that failed. Changes nothing."""
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
        """What a check has to tell: anything but what a crash leaves."""
        reason = "" if self.saved.is_torn else self.saved.reason
        if self.lost and not reason:
            reason = "cursors were lost here before, and nobody has accepted that"
        return repair.Damage(0, 0, CURSORS, 0, self._size, reason) if reason else None

    def make_sound(self, next_: int | None) -> None:
        """Make a new file if this one is not sound, or a cursor stands behind the topic's end.

        That is where a power cut took messages that somebody had read and committed. Back at the
        end, the cursor misses nothing of what gets those offsets now. Without room on the disk the
        next commit makes the file.
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
        """Go on with the cursors there are. Returns the names of the copies of what was damaged."""
        self.lost = False
        return self._replace(self.saved.cursors)

    def write(self, changes: Changes, before: Mapping[str, Committed]) -> None:
        """Store the changes to what was there before: to the kernel, or, if it is new, to disk."""
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
        """Whoever was refused must not find it stored after the next start."""
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
