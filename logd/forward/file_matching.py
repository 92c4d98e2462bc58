"""Identifies the files of a path after a start, a rotation or a truncation.

The rules, in this order:

1. A file with the device, inode and content of a known file is that file, whatever its name is.
2. A known file that is gone or was truncated is searched by its content among the other files: the
   copy made by `copytruncate`, or the compressed file. Reading continues there, at its position. A
   copy that is shorter than the position (it was made before the last lines were written) has no
   unread lines. Only a truncation makes such copies, so this rule applies only after one.
3. A file that is a prefix of another one is a copy, possibly an incomplete one, and is ignored.
   When the original is truncated, rule 2 finds it.
4. A remaining file that is newer than all known ones was created and rotated between two matches:
   it is new. An older one existed before the forwarder was started and is ignored.

Nothing is shipped or saved here; `MatchedFiles` describes what changed.
"""

from __future__ import annotations

from typing import NamedTuple

from logd.forward import rotated_files
from logd.forward.file_content import (
    FINGERPRINT_BYTES,
    UNREADABLE,
    Content,
    checksum_of,
    fingerprint_of,
    fingerprints_match,
    identity_of,
    starts_with,
    tail_at,
)
from logd.forward.paths import MatchedPaths
from logd.forward.registry import JUST_NOW, START, FileCheckpoint, FileState, Registry, SourceFile
from logd.forward.rotated_files import DirectoryChanging, DirectoryEntry, Generations, not_older

KEEP_FINISHED = 8  # finished files of a path, to recognize compressed ones with odd times
# logrotate gives a compressed file the mtime from before the rotation.
SLACK_NS = 60_000_000_000


class MatchedFiles(NamedTuple):
    queue: list[SourceFile]  # the files to read, oldest first
    new: list[SourceFile]
    lost: list[SourceFile]  # had unread bytes and can no longer be found
    is_taken: bool = False  # the file at the path is a renamed file of another path


def match_files(registry: Registry, base: str, matched: MatchedPaths) -> MatchedFiles:
    """Find the known files of `base`, and new ones. Raises DirectoryChanging."""
    known = registry.of(base)
    floor_ns = max((source.mtime_ns for source in known), default=registry.looked_ns)
    times_ns = [source.mtime_ns - SLACK_NS for source in known if _may_be_searched(source)]
    identities = {source.identity for source in known}
    since_ns = min([floor_ns, *times_ns])
    seen = rotated_files.open_generations(base, since_ns, identities, matched.paths)
    with registry.lock:
        return _FileMatching(registry, base, known, seen, floor_ns, matched).run()


def _may_be_searched(source: SourceFile) -> bool:
    """Whether it may have to be searched by its content: not if it is rotated and open."""
    is_open_rotated = source.state is FileState.rotated and source.content is not None
    return source.state is not FileState.finished and not is_open_rotated


class _FileMatching:
    def __init__(
        self,
        registry: Registry,
        base: str,
        known: list[SourceFile],
        seen: Generations,
        floor_ns: int,
        matched: MatchedPaths,
    ) -> None:
        self._registry, self._base, self._known, self._matched = registry, base, known, matched
        self._free = sorted(seen.entries, key=lambda entry: entry.age)
        self._base_entry = next((entry for entry in self._free if entry.is_base), None)
        self._newest_ns, self._floor_ns = seen.newest_ns, floor_ns
        self._bound: dict[SourceFile, DirectoryEntry] = {}
        self._truncated = set[SourceFile]()
        self._is_base_taken = False

    def run(self) -> MatchedFiles:
        for source in self._known:
            self._bind_by_inode(source)
        missing = [source for source in self._known if not self._is_found(source)]
        for source in missing:
            self._bind_by_bytes(source)
        lost = [source for source in missing if source not in self._bound]
        new = self._new_sources()
        rotated_files.close(self._free)
        reported = self._forget(lost)
        return MatchedFiles(self._queue(), new, reported, self._is_base_taken)

    # -- 1 ----------------------------------------------------------------------------------------

    def _bind_by_inode(self, source: SourceFile) -> None:
        for entry in self._free:
            if entry.content.identity != source.identity:
                continue
            is_finished = source.state is FileState.finished
            if entry.is_base and is_finished and not _is_renamed_back(entry, source):
                return  # the inode was reused
            if not entry.is_base and source.content is None and not source.is_known:
                return  # it was empty and closed: nothing identifies it
            if entry.size >= source.size and holds(entry, source):
                self._bind(source, entry)
            else:  # it is smaller or has other content: it was truncated
                self._truncated.add(source)
                source.close()
            return
        self._bind_elsewhere(source)
        if source.content is not None and not is_intact(source):
            self._truncated.add(source)  # and then moved to an unknown name
            source.close()

    def _bind_elsewhere(self, source: SourceFile) -> None:
        """Find a file that was renamed to another path that the globs match."""
        path = self._matched.identities.get(source.identity)
        if path is None or source.content is not None or source.state is FileState.finished:
            return
        entry = rotated_files.open_plain(path)
        if entry is None:
            return
        if is_same_file(entry, source):
            self._bound[source] = entry
            _attach(source, entry)
        else:
            entry.content.close()

    def _is_found(self, source: SourceFile) -> bool:
        return source in self._bound or source.content is not None

    def _bind(self, source: SourceFile, entry: DirectoryEntry) -> None:
        self._free.remove(entry)
        self._bound[source] = entry
        _attach(source, entry)

    # -- 2 ----------------------------------------------------------------------------------------

    def _bind_by_bytes(self, source: SourceFile) -> None:
        copies = [
            entry
            for entry in self._free
            if not entry.is_base and entry.mtime_ns >= source.mtime_ns - SLACK_NS
        ]
        whole = [entry for entry in copies if source.is_known and holds(entry, source)]
        starts = [
            entry
            for entry in copies
            if source in self._truncated
            and 0 < entry.size < source.checkpoint.position
            and fingerprints_match(entry.fingerprint, source.fingerprint)
        ]
        if found := whole or starts:  # of several copies the longest; the others are prefixes of it
            entry = max(found, key=lambda entry: (entry.size, entry.age))
            source.identity = entry.content.identity
            self._bind(source, entry)

    # -- 3 and 4 ----------------------------------------------------------------------------------

    def _new_sources(self) -> list[SourceFile]:
        taken = [entry for entry in self._free if self._is_taken(entry)]
        self._is_base_taken = self._base_entry in taken
        due = [entry for entry in self._free if entry not in taken and self._is_due(entry)]
        for entry in list(due):
            if self._is_copy(entry):
                due.remove(entry)
                self._free.remove(entry)
                entry.content.close()
        self._check_base()
        new = []
        for entry in due:
            source = self._registry.add(self._base, entry.content.identity)
            source.mtime_ns = self._newest_ns if entry.is_base else entry.mtime_ns
            source.checkpoint = self._read_before(entry)
            self._bind(source, entry)
            new.append(source)
        return new

    def _read_before(self, entry: DirectoryEntry) -> FileCheckpoint:
        """How far it was read for another path, if it was closed there and has grown since."""
        read = [source.checkpoint for source in self._of_other_paths(entry) if holds(entry, source)]
        return max((each for each in read if each.position >= FINGERPRINT_BYTES), default=START)

    def _of_other_paths(self, entry: DirectoryEntry) -> list[SourceFile]:
        """The known files of other paths with this inode."""
        sources = self._registry.sources.values()
        same = [source for source in sources if source.identity == entry.content.identity]
        return [source for source in same if source.base != self._base]

    def _is_due(self, entry: DirectoryEntry) -> bool:
        if entry.is_base:
            return True
        newer = entry.mtime_ns != self._floor_ns and not_older(entry.mtime_ns, self._floor_ns)
        return entry.size > 0 and (newer or entry.path in self._matched.paths)

    def _is_taken(self, entry: DirectoryEntry) -> bool:
        """Whether it was renamed from another path and is known there."""
        return any(is_same_file(entry, source) for source in self._of_other_paths(entry))

    def _is_copy(self, entry: DirectoryEntry) -> bool:
        """Whether it is a copy of (the start of) another existing or open file."""
        if entry.is_base:
            return False
        sources = self._registry.of(self._base)
        # The compressed file of an open file without a name may be older by SLACK_NS.
        slack = {s.content: 0 if s in self._bound else SLACK_NS for s in sources if s.content}
        slack |= {other.content: 0 for other in self._free if other is not entry}
        return any(
            content.size() >= entry.size
            and _proves_copy(entry, content, slack_ns)
            and starts_with(content, entry.content)
            for content, slack_ns in slack.items()
        )

    def _check_base(self) -> None:
        """Raise DirectoryChanging if the file at the path was truncated since it was opened.

        Copies of it can then no longer be recognized.
        """
        base = self._base_entry
        if base is None:
            return
        bound = [source.content for source, entry in self._bound.items() if entry is base]
        content = bound[0] if bound else base.content
        assert content is not None
        fingerprint = fingerprint_of(content.read(0, FINGERPRINT_BYTES))
        has_start = fingerprint[: len(base.fingerprint)] == base.fingerprint
        if content.size() < base.size or not has_start or (base.size and not base.fingerprint):
            rotated_files.close(self._free)
            raise DirectoryChanging(self._base)

    # -- result -----------------------------------------------------------------------------------

    def _forget(self, lost: list[SourceFile]) -> list[SourceFile]:
        """Remove lost files and the oldest finished ones; the lost ones that had unread bytes."""
        unread = [s for s in lost if s.size > s.checkpoint.position]
        reported = [source for source in unread if source.state is not FileState.finished]
        for source in lost:
            source.state = FileState.finished
        there = self._matched.identities
        done = [s for s in self._known if s.state is FileState.finished and s not in self._bound]
        for source in [s for s in done if s.identity not in there][:-KEEP_FINISHED]:
            self._registry.drop(source)
        return reported

    def _queue(self) -> list[SourceFile]:
        reading = []
        for source in self._registry.of(self._base):
            entry = self._bound.get(source)
            if source.content is None:
                continue
            is_base = entry is not None and entry.is_base
            source.state = FileState.current if is_base else FileState.rotated
            age = entry.age if entry else (False, source.content.stamp().mtime_ns, 0, "")
            reading.append((age, source.id, source))
        return [source for _, _, source in sorted(reading)]


def holds(entry: DirectoryEntry, source: SourceFile) -> bool:
    """Whether the file has the content that was read from `source` so far."""
    position, checksum = source.checkpoint
    if entry.size < position or not fingerprints_match(entry.fingerprint, source.fingerprint):
        return False
    try:
        return checksum_of(tail_at(entry.content, position)) == checksum
    except UNREADABLE:
        return False


def is_known_file(registry: Registry, path: str) -> bool:
    """Whether the file at this path is a known one, possibly of another path."""
    identity = identity_of(path)
    sources = [source for source in registry.sources.values() if source.identity == identity]
    entry = rotated_files.open_plain(path) if sources else None
    if entry is None:
        return any(source.content is not None for source in sources)
    try:
        return any(is_same_file(entry, source) for source in sources)
    finally:
        entry.content.close()


def is_same_file(entry: DirectoryEntry, source: SourceFile) -> bool:
    """Whether it is that known file. The inode of a closed file may have been reused."""
    if entry.content.identity != source.identity:
        return False
    if source.content is not None:
        return True
    if source.state is FileState.finished and entry.size > source.checkpoint.position:
        return False
    return source.is_known and entry.size >= source.size and holds(entry, source)


def _is_renamed_back(entry: DirectoryEntry, source: SourceFile) -> bool:
    """Whether a finished file was renamed back, unchanged."""
    return entry.mtime_ns <= source.mtime_ns and is_same_file(entry, source)


def is_intact(source: SourceFile) -> bool:
    """Whether an open file still has its known content. Extends the fingerprint if it has grown."""
    content = source.content
    assert content is not None
    fingerprint = fingerprint_of(content.read(0, FINGERPRINT_BYTES))
    if fingerprint[: len(source.fingerprint)] != source.fingerprint:
        return False
    if content.size() < max(source.at, source.size) or tail_at(content, source.at) != source.tail:
        return False
    source.fingerprint = fingerprint
    return True


def _proves_copy(entry: DirectoryEntry, content: Content, slack_ns: int) -> bool:
    """Whether equal content proves a copy. The first line of all generations may be equal, so a
    short file must never have been renamed, or have the mtime of the original."""
    mtime_ns = content.stamp().mtime_ns
    same_time = not_older(entry.mtime_ns, mtime_ns - slack_ns) and entry.mtime_ns <= mtime_ns
    return entry.size >= FINGERPRINT_BYTES or entry.is_unmoved or same_time


def _attach(source: SourceFile, entry: DirectoryEntry) -> None:
    """Read the known file from this entry, unless it is already open."""
    position = source.checkpoint.position
    source.fingerprint = max(source.fingerprint, entry.fingerprint, key=len)
    source.size = entry.size
    if source.seen != entry.stamp:
        source.seen, source.grown_s = entry.stamp, JUST_NOW
    if source.content is not None and source.content.identity == entry.content.identity:
        entry.content.close()
    elif source.state is FileState.finished and not entry.is_base and entry.size <= position:
        entry.content.close()  # it has no unread bytes
    else:
        source.close()
        source.content = entry.content
        source.at = position
        source.tail = tail_at(entry.content, source.at)
        source.grown_s, source.searched = JUST_NOW, 0
