"""After a start, a rotation or a truncation: which file is which, and what is still to be read.

In this order, for one path:

1. A file with the device, inode and bytes of a source is that source, whatever it is called.
2. A source whose file is gone or was truncated is looked for by its bytes among the files that no
   source has: the copy of a `copytruncate`, or the compressed archive. It goes on there, at its
   position. A copy that is shorter than what was read (it was made before the last lines came) has
   nothing left to read; only a truncation makes such copies, so only after one is this believed.
3. A file that is the start of another one is a copy, perhaps one under way: it is left alone. When
   the original is truncated, rule 2 finds it.
4. What is left, and is newer than all that was known, came and was rotated unseen: new sources.
   What is older was there before the forwarder was, and is nobody's.

Nothing here is read for shipping, and nothing is saved; `Found` says what changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from logd.forward import rotated_files
from logd.forward.file_content import (
    HEAD_BYTES,
    UNREADABLE,
    Content,
    Identity,
    check_of,
    head_of,
    heads_agree,
    starts_with,
    tail_at,
)
from logd.forward.file_positions import (
    JUST_NOW,
    START,
    FileMark,
    ForwardState,
    Register,
    SourceFile,
)
from logd.forward.rotated_files import DirectoryEntry, Look, Unsettled, not_older

KEEP_DONE = 8  # finished generations of a path that are remembered, against archives of odd times
# logrotate gives an archive the time that the log had when the rotation began, before the copy.
SLACK_NS = 60_000_000_000


class MatchedFiles(NamedTuple):
    queue: list[SourceFile]  # what is to be read, oldest first
    new: list[SourceFile]
    lost: list[SourceFile]  # had more to read, as far as was seen, and can no longer be found
    is_taken: bool = False  # the file at the path is a source of another path, under a new name


class Places(NamedTuple):
    """What the user's globs match: paths to read in full, and who is where at the moment."""

    wanted: Collection[str] = ()
    elsewhere: Mapping[Identity, str] = {}


def survey(register: Register, base: str, places: Places) -> MatchedFiles:
    """Bind the sources of `base` to files, with new ones where due. Raises Unsettled."""
    known = register.of(base)
    floor_ns = max((source.mtime_ns for source in known), default=register.looked_ns)
    sought = [source.mtime_ns - SLACK_NS for source in known if _may_be_sought(source)]
    identities = {source.identity for source in known}
    seen = rotated_files.look(base, min([floor_ns, *sought]), identities, places.wanted)
    with register.lock:
        return _Survey(register, base, known, seen, floor_ns, places).run()


def _may_be_sought(source: SourceFile) -> bool:
    """Might it have to be found by its bytes? Not if it is open and nobody truncates it."""
    return source.state is ForwardState.live or (
        source.state is ForwardState.away and source.content is None
    )


class _Survey:
    def __init__(
        self,
        register: Register,
        base: str,
        known: list[SourceFile],
        seen: Look,
        floor_ns: int,
        places: Places,
    ) -> None:
        self._register, self._base, self._known, self._places = register, base, known, places
        self._free = sorted(seen.entries, key=lambda entry: entry.age)
        self._base_entry = next((entry for entry in self._free if entry.is_base), None)
        self._newest_ns, self._floor_ns = seen.newest_ns, floor_ns
        self._bound: dict[SourceFile, DirectoryEntry] = {}
        self._truncated = set[SourceFile]()
        self._is_base_taken = False

    def run(self) -> MatchedFiles:
        for source in self._known:
            self._bind_by_inode(source)
        missing = [source for source in self._known if not self._is_at_hand(source)]
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
            if entry.is_base and source.state is ForwardState.done and not _is_back(entry, source):
                return  # the inode is used again
            if not entry.is_base and source.content is None and not source.is_known:
                return  # it was empty and was let go of: nothing shows that this is it
            if entry.size >= source.size and holds(entry, source):
                self._bind(source, entry)
            else:  # a file that has become smaller was truncated, whatever is in it now
                self._truncated.add(source)
                source.let_go()
            return
        self._bind_elsewhere(source)
        if source.content is not None and not is_intact(source):
            self._truncated.add(source)  # and then moved out of sight
            source.let_go()

    def _bind_elsewhere(self, source: SourceFile) -> None:
        """Rotated to a name that is no sibling's, but that the globs match too."""
        path = self._places.elsewhere.get(source.identity)
        if path is None or source.content is not None or source.state is ForwardState.done:
            return
        entry = rotated_files.opened_plain(path)
        if entry is None:
            return
        if is_same_file(entry, source):
            self._bound[source] = entry
            _attach(source, entry)
        else:
            entry.content.close()

    def _is_at_hand(self, source: SourceFile) -> bool:
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
            and 0 < entry.size < source.mark.position
            and heads_agree(entry.head, source.head)
        ]
        if found := whole or starts:  # of several copies the longest; the others are its starts
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
            source = self._register.add(self._base, entry.content.identity)
            source.mtime_ns = self._newest_ns if entry.is_base else entry.mtime_ns
            source.mark = self._read_before(entry)
            self._bind(source, entry)
            new.append(source)
        return new

    def _read_before(self, entry: DirectoryEntry) -> FileMark:
        """How far it was read for another path, if it was let go of and has grown since."""
        known = [s for s in self._of_other_paths(entry) if s.mark.position >= HEAD_BYTES]
        return max((source.mark for source in known if holds(entry, source)), default=START)

    def _of_other_paths(self, entry: DirectoryEntry) -> list[SourceFile]:
        """The sources of its inode."""
        sources = self._register.sources.values()
        same = [source for source in sources if source.identity == entry.content.identity]
        return [source for source in same if source.base != self._base]

    def _is_due(self, entry: DirectoryEntry) -> bool:
        if entry.is_base:
            return True
        newer = entry.mtime_ns != self._floor_ns and not_older(entry.mtime_ns, self._floor_ns)
        return entry.size > 0 and (newer or entry.path in self._places.wanted)

    def _is_taken(self, entry: DirectoryEntry) -> bool:
        """Is it known already, from another path that it was renamed from?"""
        return any(is_same_file(entry, source) for source in self._of_other_paths(entry))

    def _is_copy(self, entry: DirectoryEntry) -> bool:
        """Is it the start of another file that is there or is still open? An archive is, too."""
        if entry.is_base:
            return False
        sources = self._register.of(self._base)
        # A file that has no name any more: this may be its archive, whose time is SLACK_NS' matter.
        slack = {s.content: 0 if s in self._bound else SLACK_NS for s in sources if s.content}
        slack |= {other.content: 0 for other in self._free if other is not entry}
        return any(
            content.size() >= entry.size
            and _is_no_chance(entry, content, slack_ns)
            and starts_with(content, entry.content)
            for content, slack_ns in slack.items()
        )

    def _check_base(self) -> None:
        """Was nothing that was compared with the file at the path compared with an emptied one?

        Truncated since it was opened, it has lost what shows that a copy is one.
        """
        base = self._base_entry
        if base is None:
            return
        bound = [source.content for source, entry in self._bound.items() if entry is base]
        content = bound[0] if bound else base.content
        assert content is not None
        head = head_of(content.read(0, HEAD_BYTES))
        is_same = content.size() >= base.size and head[: len(base.head)] == base.head
        if not is_same or (base.size and not base.head):
            rotated_files.close(self._free)
            raise Unsettled(self._base)

    # -- the result -------------------------------------------------------------------------------

    def _forget(self, lost: list[SourceFile]) -> list[SourceFile]:
        """Drop what cannot be read any more, and the oldest of what is done with."""
        reported = [
            s for s in lost if s.state is not ForwardState.done and s.size > s.mark.position
        ]
        for source in lost:
            source.state = ForwardState.done
        there = self._places.elsewhere
        done = [s for s in self._known if s.state is ForwardState.done and s not in self._bound]
        for source in [s for s in done if s.identity not in there][:-KEEP_DONE]:
            self._register.drop(source)
        return reported

    def _queue(self) -> list[SourceFile]:
        reading = []
        for source in self._register.of(self._base):
            entry = self._bound.get(source)
            if source.content is None:
                continue
            is_base = entry is not None and entry.is_base
            source.state = ForwardState.live if is_base else ForwardState.away
            age = entry.age if entry else (False, source.content.stamp().mtime_ns, 0, "")
            reading.append((age, source.id, source))
        return [source for _, _, source in sorted(reading)]


def holds(entry: DirectoryEntry, source: SourceFile) -> bool:
    """Are this file's bytes the ones that were read so far?"""
    if entry.size < source.mark.position or not heads_agree(entry.head, source.head):
        return False
    try:
        return check_of(tail_at(entry.content, source.mark.position)) == source.mark.check
    except UNREADABLE:
        return False


def is_same_file(entry: DirectoryEntry, source: SourceFile) -> bool:
    """Is it that source, wherever it was found? An inode that nobody holds open is used again."""
    if entry.content.identity != source.identity:
        return False
    if source.content is not None:
        return True
    if source.state is ForwardState.done and entry.size > source.mark.position:
        return False
    return source.is_known and entry.size >= source.size and holds(entry, source)


def _is_back(entry: DirectoryEntry, source: SourceFile) -> bool:
    """Was what was moved away moved back, as it was? If so, nothing in it is new."""
    return entry.mtime_ns <= source.mtime_ns and is_same_file(entry, source)


def is_intact(source: SourceFile) -> bool:
    """Has the file still the bytes that we know of it? If it has grown, we know more now."""
    content = source.content
    assert content is not None
    head = head_of(content.read(0, HEAD_BYTES))
    if content.size() < max(source.at, source.size) or head[: len(source.head)] != source.head:
        return False
    if tail_at(content, source.at) != source.tail:
        return False
    source.head = head
    return True


def _is_no_chance(entry: DirectoryEntry, content: Content, slack_ns: int) -> bool:
    """Are the same bytes a proof? The first line of each generation may be the same, so a short
    file has to be one that was never renamed, or have the other one's time, as archives do."""
    mtime_ns = content.stamp().mtime_ns
    same_time = not_older(entry.mtime_ns, mtime_ns - slack_ns) and entry.mtime_ns <= mtime_ns
    return entry.size >= HEAD_BYTES or entry.is_unmoved or same_time


def _attach(source: SourceFile, entry: DirectoryEntry) -> None:
    """Read the source from here on; what it is read from already stays."""
    source.head = max(source.head, entry.head, key=len)
    source.size = entry.size
    if source.seen != entry.stamp:
        source.seen, source.grown_s = entry.stamp, JUST_NOW
    if source.content is not None and source.content.identity == entry.content.identity:
        entry.content.close()
    elif (
        source.state is ForwardState.done
        and entry.size <= source.mark.position
        and not entry.is_base
    ):
        entry.content.close()  # nothing has come since it was let go of
    else:
        source.let_go()
        source.content = entry.content
        source.at = source.mark.position
        source.tail = tail_at(entry.content, source.at)
        source.grown_s, source.searched = JUST_NOW, 0
