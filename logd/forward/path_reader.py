"""Reads one path and its rotated files, oldest first.

A program writes to the old file, switches, and then writes to the new one. To keep this order, the
sizes of all files are taken before reading, the newest file first. Then each file is read up to its
size, the oldest first. All lines that precede those of the new file are then read before them.

The file at the path may be truncated at any time, and grow beyond the read position unnoticed. So
after each read, the known bytes (the first ones, and those before the position) are compared again.
If they differ, the data that was read is discarded, and the files are matched again.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from logd.forward.file_content import UNREADABLE, Identity, Stamp, identity_of
from logd.forward.file_matching import MatchedFiles, is_intact, match_files
from logd.forward.lines import FileChunk, LineLimits, read_chunk
from logd.forward.paths import MatchedPaths
from logd.forward.registry import JUST_NOW, FileState, Registry, SourceFile
from logd.forward.rotated_files import DirectoryChanging

RETRY_S = 5.0  # before a file that could not be opened is opened again
_MAX_FAILURES = 20


class RotationTimeouts(NamedTuple):
    rotated_line_s: float = 1.0  # for the end of the last line of a rotated file
    rotated_s: float = 30.0  # for more lines in a rotated file, before it is closed
    partial_s: float | None = None  # for the end of a line in the file at the path; None: no limit


class PathReader:
    def __init__(
        self, base: str, registry: Registry, limits: LineLimits, timeouts: RotationTimeouts
    ) -> None:
        self.base = base
        self.queue: list[SourceFile] = []  # open files, oldest first
        self._registry, self._limits, self._timeouts = registry, limits, timeouts
        self._unread: list[tuple[SourceFile, int]] = []  # with end positions, the next file last
        self._is_changed = True  # the files must be matched again
        self._unreadable: tuple[Identity, float] | None = None  # ignored until this time
        self._is_taken = False  # ignored, because it is read for another path
        self._failures = 0  # consecutive failed reads

    # -- files ------------------------------------------------------------------------------------

    def refresh(self, now_s: float, matched: MatchedPaths) -> MatchedFiles | None:
        """Check the files and start a new round of reading. The new match, if there was one."""
        if self._is_quiet():
            return None
        found = None
        if self._is_changed or self._is_other_file(now_s) or not self._is_current_known():
            found = self._match_files(now_s, matched)
        for source in list(self.queue):
            if self._is_changed:
                break
            self._update(source, now_s)
        # A file is not read before it is identified.
        self._unread = [] if self._is_changed else self._sizes()
        return found

    def _sizes(self) -> list[tuple[SourceFile, int]]:
        return [(source, source.content.size()) for source in reversed(self.queue)
                if source.content is not None and not _is_empty(source)]  # fmt: skip

    def _is_quiet(self) -> bool:
        """Whether there is one file, completely read and unchanged: usually one system call."""
        if self._is_changed or len(self.queue) != 1 or self.current is None:
            return False
        try:
            status = os.stat(self.base)
        except OSError:
            return False
        current, stamp = self.current, Stamp(status.st_size, status.st_mtime_ns)
        is_same = (status.st_dev, status.st_ino) == current.identity and stamp == current.seen
        is_noted = current.mtime_ns >= stamp.mtime_ns or _is_empty(current)
        return is_same and current.at == stamp.size and is_noted

    def mark_changed(self) -> None:
        """Match the files again, although the path itself may be unchanged."""
        self._is_changed = True

    @property
    def is_settled(self) -> bool:
        """Whether all files are identified."""
        return not self._is_changed

    @property
    def is_unreadable(self) -> bool:
        """Whether there is a file at the path that cannot be opened."""
        return self._unreadable is not None and not self._is_taken

    @property
    def current(self) -> SourceFile | None:
        newest = self.queue[-1] if self.queue else None
        return newest if newest is not None and newest.state is FileState.current else None

    def _is_other_file(self, now_s: float) -> bool:
        identity = identity_of(self.base)
        if identity == (self.current.identity if self.current else None):
            return False
        if self._unreadable and self._unreadable[0] == identity:
            return now_s >= self._unreadable[1]
        return True

    def _is_current_known(self) -> bool:
        file = self.current
        return file is None or file.content is None or _is_known(file, file.content.stamp())

    def _match_files(self, now_s: float, matched: MatchedPaths) -> MatchedFiles | None:
        before = identity_of(self.base)
        try:
            found = match_files(self._registry, self.base, matched)
        except DirectoryChanging:
            self._is_changed = True
            return None
        self._is_changed = False
        self.queue = found.queue
        identity = identity_of(self.base) if self.current is None else None
        has_just_come = identity != before
        self._unreadable = (identity, now_s + RETRY_S) if identity and not has_just_come else None
        self._is_taken = found.is_taken
        return found

    def _update(self, source: SourceFile, now_s: float) -> None:
        """Record growth; close a rotated file that has not grown for `rotated_s`."""
        assert source.content is not None
        stamp = source.content.stamp()
        if source.state is FileState.current and not _is_known(source, stamp):
            self._is_changed = True
            return
        if stamp != source.seen or source.grown_s == JUST_NOW:
            source.seen, source.size, source.grown_s = stamp, stamp.size, now_s
        if source.at == stamp.size > 0:  # an empty file may still be written within this clock tick
            source.mtime_ns = max(source.mtime_ns, stamp.mtime_ns)
        if source.state is not FileState.rotated or source.at < stamp.size:
            return
        is_final = source.content.is_compressed or source.at > stamp.size
        if is_final or now_s - source.grown_s >= self._timeouts.rotated_s:
            source.state = FileState.finished
            source.close()
            self.queue.remove(source)

    # -- reading ----------------------------------------------------------------------------------

    def next_chunk(self, now_s: float) -> tuple[SourceFile, FileChunk] | None:
        """The next chunk of this round, in order; None at its end."""
        while self._unread:
            source, stop = self._unread[-1]
            if source.at < stop:
                chunk = self._read(source, stop, now_s)
                if chunk is not None:
                    source.at, source.tail = chunk.end, chunk.tail
                    return source, chunk
                if source.at < stop and source.state is FileState.rotated:
                    self._unread = []  # newer files must wait for the end of its last line
            if self._unread:
                self._unread.pop()
        return None

    def _read(self, source: SourceFile, stop: int, now_s: float) -> FileChunk | None:
        assert source.content is not None
        try:
            chunk = read_chunk(
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
        if source.state is FileState.current and not is_intact(source):
            self._is_changed = True
            self._unread = []
            return None
        if chunk is None:
            source.searched = stop
        return chunk

    def _reopen(self, source: SourceFile) -> None:
        """Match the files again, to open it again: handles of network file systems may go stale."""
        source.close()
        self.queue.remove(source)
        self._unread, self._is_changed = [], True

    def _is_overdue(self, source: SourceFile, now_s: float) -> bool:
        """Whether an unterminated rest now counts as a line."""
        assert source.content is not None
        if source.content.is_compressed:
            return True
        is_rotated = source.state is FileState.rotated
        wait_s = self._timeouts.rotated_line_s if is_rotated else self._timeouts.partial_s
        return wait_s is not None and now_s - source.grown_s >= wait_s


def _is_empty(source: SourceFile) -> bool:
    """Whether it is the file at the path and was empty when the files were last matched."""
    return source.state is FileState.current and source.size == 0


def _is_known(current: SourceFile, stamp: Stamp) -> bool:
    """Whether it is the file that was matched, possibly with more bytes.

    An empty file cannot be identified: it may have been written, copied and truncated meanwhile.
    """
    return stamp == current.seen or (current.size > 0 and is_intact(current))
