"""One path and its rotated files, read oldest first.

The order of lines across a rotation: a program writes to the old file, then switches, then writes
to the new one. So before anything is read, the sizes of all files are taken, the newest file's
first; then each is read up to that size, the oldest first. When the new file had that size, all
lines that come before its own were in the old one, and they are read first.

The file at the path may be truncated at any moment, and grow past our position before we look. So
after each read the bytes that we know (the first, and those before our position) are compared once
more; if they have changed, what was read is thrown away, and a survey finds out what happened.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from logd.forward.file_content import UNREADABLE, Identity, Stamp
from logd.forward.file_matching import MatchedFiles, Places, is_intact, survey
from logd.forward.file_positions import JUST_NOW, ForwardState, Register, SourceFile
from logd.forward.lines import FileChunk, LineLimits, next_piece
from logd.forward.rotated_files import Unsettled

RETRY_S = 5.0  # before a file that could not be opened is tried again
_MAX_FAILURES = 20


class RotationWait(NamedTuple):
    """How long to wait for what may still come."""

    rotated_line_s: float = 1.0  # for the end of a rotated file's last line
    rotated_s: float = 30.0  # for more lines in a rotated file, until it is let go of
    partial_s: float | None = None  # for the end of a line in the file at the path; None: for ever


class RotationChain:
    def __init__(
        self, base: str, register: Register, limits: LineLimits, patience: RotationWait
    ) -> None:
        self.base = base
        self.queue: list[SourceFile] = []  # what is read, oldest first
        self._register, self._limits, self._patience = register, limits, patience
        self._round: list[
            tuple[SourceFile, int]
        ] = []  # what to read up to where, the next one last
        self._is_changed = True  # a survey is due
        self._unreadable: tuple[Identity, float] | None = None  # until when it is left alone
        self._is_taken = False  # it is left alone because it is read for another path
        self._failures = 0  # of reads, one after the other

    # -- looking ----------------------------------------------------------------------------------

    def look(self, now_s: float, places: Places) -> MatchedFiles | None:
        """See what has changed, and begin a new round. What a survey found, if there was one."""
        if self._is_quiet():
            return None
        found = None
        if self._is_changed or self._is_other_file(now_s) or not self._is_live_known():
            found = self._survey(now_s, places)
        for source in list(self.queue):
            if self._is_changed:
                break
            self._attend(source, now_s)
        # Nothing is read of a file before it is known which it is.
        self._round = [] if self._is_changed else self._sizes()
        return found

    def _sizes(self) -> list[tuple[SourceFile, int]]:
        return [(source, source.content.size()) for source in reversed(self.queue)
                if source.content is not None and not _is_empty(source)]  # fmt: skip

    def _is_quiet(self) -> bool:
        """Is there one file, read to its end and unchanged since? One call for most of them."""
        if self._is_changed or len(self.queue) != 1 or self.live is None:
            return False
        try:
            status = os.stat(self.base)
        except OSError:
            return False
        live, stamp = self.live, Stamp(status.st_size, status.st_mtime_ns)
        is_same = (status.st_dev, status.st_ino) == live.identity and stamp == live.seen
        is_noted = live.mtime_ns >= stamp.mtime_ns or _is_empty(live)
        return is_same and live.at == stamp.size and is_noted

    def expect_change(self) -> None:
        """Something has happened that a look at the path alone does not show."""
        self._is_changed = True

    @property
    def is_settled(self) -> bool:
        """Is it known which file is which?"""
        return not self._is_changed

    @property
    def is_unreadable(self) -> bool:
        """Is there a file at the path that cannot be opened?"""
        return self._unreadable is not None and not self._is_taken

    @property
    def live(self) -> SourceFile | None:
        newest = self.queue[-1] if self.queue else None
        return newest if newest is not None and newest.state is ForwardState.live else None

    def _is_other_file(self, now_s: float) -> bool:
        identity = identity_of(self.base)
        if identity == (self.live.identity if self.live else None):
            return False
        if self._unreadable and self._unreadable[0] == identity:
            return now_s >= self._unreadable[1]
        return True

    def _is_live_known(self) -> bool:
        live = self.live
        return live is None or live.content is None or _is_known(live, live.content.stamp())

    def _survey(self, now_s: float, places: Places) -> MatchedFiles | None:
        before = identity_of(self.base)
        try:
            found = survey(self._register, self.base, places)
        except Unsettled:
            self._is_changed = True
            return None
        self._is_changed = False
        self.queue = found.queue
        identity = identity_of(self.base) if self.live is None else None
        has_just_come = identity != before
        self._unreadable = (identity, now_s + RETRY_S) if identity and not has_just_come else None
        self._is_taken = found.is_taken
        return found

    def _attend(self, source: SourceFile, now_s: float) -> None:
        """Notice growth; let go of what was rotated away and has been silent for long enough."""
        assert source.content is not None
        stamp = source.content.stamp()
        if source.state is ForwardState.live and not _is_known(source, stamp):
            self._is_changed = True
            return
        if stamp != source.seen or source.grown_s == JUST_NOW:
            source.seen, source.size, source.grown_s = stamp, stamp.size, now_s
        if source.at == stamp.size > 0:  # an empty one may be written in this tick of the clock
            source.mtime_ns = max(source.mtime_ns, stamp.mtime_ns)
        if source.state is not ForwardState.away or source.at < stamp.size:
            return
        is_final = source.content.is_archive or source.at > stamp.size
        if is_final or now_s - source.grown_s >= self._patience.rotated_s:
            source.state = ForwardState.done
            source.let_go()
            self.queue.remove(source)

    # -- reading ----------------------------------------------------------------------------------

    def take(self, now_s: float) -> tuple[SourceFile, FileChunk] | None:
        """The next piece of this round, in order; None when there is no more of it."""
        while self._round:
            source, stop = self._round[-1]
            if source.at < stop:
                piece = self._read(source, stop, now_s)
                if piece is not None:
                    source.at, source.tail = piece.end, piece.tail
                    return source, piece
                if source.at < stop and source.state is ForwardState.away:
                    self._round = []  # the newer files wait for the end of its last line
            if self._round:
                self._round.pop()
        return None

    def _read(self, source: SourceFile, stop: int, now_s: float) -> FileChunk | None:
        assert source.content is not None
        try:
            piece = next_piece(
                source.content,
                source.at,
                stop,
                source.tail,
                self._limits,
                searched=source.searched,
                partial=self._is_overdue(source, now_s),
            )
        except UNREADABLE:
            self._failures += 1
            if self._failures > _MAX_FAILURES:
                raise
            self._reopen(source)
            return None
        self._failures = 0
        if source.state is ForwardState.live and not is_intact(source):
            self._is_changed = True
            self._round = []
            return None
        if piece is None:
            source.searched = stop
        return piece

    def _reopen(self, source: SourceFile) -> None:
        """Let a survey open it anew: on a network's file system a handle may go stale."""
        source.let_go()
        self.queue.remove(source)
        self._round, self._is_changed = [], True

    def _is_overdue(self, source: SourceFile, now_s: float) -> bool:
        """Does what has no line end count as a line by now?"""
        assert source.content is not None
        if source.content.is_archive:
            return True
        away = source.state is ForwardState.away
        wait_s = self._patience.rotated_line_s if away else self._patience.partial_s
        return wait_s is not None and now_s - source.grown_s >= wait_s


def _is_empty(source: SourceFile) -> bool:
    """Is it the file at the path, and was there nothing in it when it was last surveyed?"""
    return source.state is ForwardState.live and source.size == 0


def _is_known(live: SourceFile, stamp: Stamp) -> bool:
    """Is this the file that was surveyed, or the same with more in it?

    Of an empty one nothing is known: it may have been filled, copied and truncated unseen.
    """
    return stamp == live.seen or (live.size > 0 and is_intact(live))


def identity_of(path: str) -> Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
