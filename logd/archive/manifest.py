"""Which files of an archive count: a chain of small commits, each published in one step.

    <archive>/_commits/00000000000000000001.json      what the first commit added
    <archive>/_commits/00000000000000000064.json      every 64th has all that counts

A commit is created under the next number, and only if nobody else has created that one: this is the
single step that makes its files count, and it needs no rename. A file that no commit names does not
count, so a writer may be killed anywhere. Always: no offset of a topic id is in two files that
count. Commits are never removed or changed. Pure but for the `Store` it is given.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from logd.archive.object_stores import ArchiveStore
from logd.errors import ArchiveError
from logd.wire.offset_ranges import OffsetRange, common, count, joined

COMMITS = "_commits"
EVERY = 64  # commits, then one that has everything: so that no reader reads more than these
FORMAT = 1
_TRIES = 100  # at a number that others take first
_NAME = re.compile(rf"{COMMITS}/([0-9]{{20}})\.json")
_DATA = re.compile(r"topic=[A-Za-z0-9][A-Za-z0-9._-]{0,127}/hour=[0-9T-]{1,32}/[0-9a-f-]+\.parquet")


class ArchivedFile(msgspec.Struct, frozen=True):
    """A Parquet file: all messages of one topic id from `first` up to `next`, of one hour."""

    path: str
    topic: str
    topic_id: str
    hour: str
    first: int
    next: int
    value_bytes: int  # of the messages alone
    file_bytes: int
    min_time_ms: int
    max_time_ms: int

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.first, self.next)

    @property
    def messages(self) -> int:
        return self.next - self.first


class LostOffsets(msgspec.Struct, frozen=True):
    """Messages that the daemon had lost, and an operator had accepted that: no file has them."""

    topic: str
    topic_id: str
    first: int
    next: int

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.first, self.next)


class ManifestCommit(msgspec.Struct, frozen=True):
    run: str  # a random name, so that nobody takes another's commit for his own
    time_ms: int
    what: str
    added: list[ArchivedFile] = []
    removed: list[str] = []
    lost: list[LostOffsets] = []
    format: Literal[1] = 1
    is_all: bool = False  # `added` and `lost` are everything that counts


class CommitConflict(Exception):
    """Another commit has archived or replaced the same meanwhile. Look again."""


@dataclass(frozen=True, slots=True)
class ManifestState:
    """Everything that counts as of commit `number`. 0: nothing was ever committed."""

    number: int = 0
    files: dict[str, ArchivedFile] = field(default_factory=dict)
    lost: tuple[LostOffsets, ...] = ()

    def of(self, topic_id: str) -> list[ArchivedFile]:
        """The files of one topic, in the order of its offsets."""
        found = (file for file in self.files.values() if file.topic_id == topic_id)
        return sorted(found, key=lambda file: file.first)

    def covered(self, topic_id: str) -> list[OffsetRange]:
        """The offsets of a topic that need not be archived any more."""
        lost = [lost.range for lost in self.lost if lost.topic_id == topic_id]
        return joined([*(file.range for file in self.of(topic_id)), *lost])

    @property
    def topics(self) -> dict[str, set[str]]:
        """The ids that each name had: a topic that was made anew has another."""
        found: dict[str, set[str]] = {}
        every: list[ArchivedFile | LostOffsets] = [*self.files.values(), *self.lost]
        for one in every:
            found.setdefault(one.topic, set()).add(one.topic_id)
        return found

    def after(self, commit: ManifestCommit) -> ManifestState:
        """The next state; CommitConflict where this commit does not fit to it."""
        if commit.is_all:
            files = {file.path: file for file in commit.added}
            return ManifestState(self.number + 1, files, tuple(commit.lost))
        if not set(commit.removed) <= set(self.files):
            raise CommitConflict
        removed = set(commit.removed)
        files = {path: file for path, file in self.files.items() if path not in removed}
        kept = replace(self, files=files)
        for topic_id, new in _by_topic([*commit.added, *commit.lost]).items():
            twice = count(new) < sum(next_ - first for first, next_ in new)
            if twice or common(kept.covered(topic_id), new):
                raise CommitConflict
        files |= {file.path: file for file in commit.added}
        return ManifestState(self.number + 1, files, (*self.lost, *commit.lost))


def _by_topic(new: Iterable[ArchivedFile | LostOffsets]) -> dict[str, list[OffsetRange]]:
    found: dict[str, list[OffsetRange]] = {}
    for one in new:
        found.setdefault(one.topic_id, []).append(one.range)
    return found


class Manifest:
    """The commits of one archive."""

    def __init__(self, store: ArchiveStore) -> None:
        self.store = store

    def state(self) -> ManifestState:
        """What counts now. Reads no more than EVERY commits."""
        numbers = sorted(self._numbers())
        if not numbers:
            return ManifestState()
        base = numbers[-1] - numbers[-1] % EVERY
        state = ManifestState(max(0, base - 1))
        for number in range(max(1, base), numbers[-1] + 1):
            commit = self._read(number)
            try:
                state = state.after(commit)
            except CommitConflict:
                raise self._damaged(number, "it does not follow from the one before it") from None
        return state

    def existing(self) -> ManifestState:
        """The same, for whoever cannot work without an archive."""
        state = self.state()
        if not state.number:
            raise ArchiveError(
                f"there is no archive at {self.store.url}; `log-cli archive {self.store.url}`"
                " makes one, else check the path"
            )
        return state

    def commit(self, commit: ManifestCommit, state: ManifestState | None = None) -> ManifestState:
        """Publish it after the commits of others; CommitConflict if they exclude it.

        `state` saves a look: it may be old.
        """
        state = state or self.state()
        for _ in range(_TRIES):
            after = state.after(commit)
            if self.store.create(_name(after.number), _encode(commit, after)):
                return after
            state = self.state()
        raise ArchiveError(f"{self.store.url} is committed to by too many at once; try again")

    def recent(self, since_s: float) -> Iterator[ManifestCommit]:
        """The commits that were made since then."""
        for found in self.store.list(COMMITS):
            match = _NAME.fullmatch(found.path)
            if match and found.modified_s >= since_s:
                yield self._read(int(match[1]))

    def _numbers(self) -> Iterator[int]:
        for found in self.store.list(COMMITS):
            if match := _NAME.fullmatch(found.path):
                yield int(match[1])

    def _read(self, number: int) -> ManifestCommit:
        try:
            commit = msgspec.json.decode(self.store.get(_name(number)), type=ManifestCommit)
        except FileNotFoundError:
            raise self._damaged(number, "it is missing") from None
        except msgspec.DecodeError as error:
            raise self._damaged(number, str(error)) from None
        for file in commit.added:
            if not _DATA.fullmatch(file.path) or not file.first < file.next:
                raise self._damaged(number, "it names a file that is none of an archive")
        return commit

    def _damaged(self, number: int, why: str) -> ArchiveError:
        return ArchiveError(
            f"{self.store.url} cannot be read: commit {_name(number)} is damaged ({why});"
            " bring it back from a copy of the archive"
        )


def new_commit(run: str, what: str, **content: object) -> ManifestCommit:
    time_ms = time.time_ns() // 1_000_000
    return msgspec.convert({"run": run, "time_ms": time_ms, "what": what} | content, ManifestCommit)


def _encode(commit: ManifestCommit, after: ManifestState) -> bytes:
    if after.number % EVERY == 0:
        everything = list(after.files.values())
        commit = msgspec.structs.replace(
            commit, added=everything, lost=list(after.lost), is_all=True
        )
    return msgspec.json.encode(commit)


def _name(number: int) -> str:
    return f"{COMMITS}/{number:020d}.json"
