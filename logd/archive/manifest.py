"""The manifest: the files of an archive, as a sequence of small commits.

    <archive>/_commits/00000000000000000001.json      what the first commit added
    <archive>/_commits/00000000000000000064.json      every 64th lists all files

A commit is created under the next number if that does not exist; this single step, which needs no
rename, adds its files to the archive. Files that no commit names are ignored, so a writer may be
killed at any time. Invariant: no offset of a topic id is in two files of the archive. Commits are
never removed or changed. Pure except for the `ArchiveStore` that it is given.
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
from logd.wire.offset_ranges import OffsetRange, count_offsets, intersect, merge
from logd.wire.requests import TOPIC_NAME

COMMITS = "_commits"
SNAPSHOT_INTERVAL = 64  # every 64th commit lists all files; a reader needs only later ones
FORMAT = 1
_MAX_ATTEMPTS = 100  # if others create the same number first
_NAME = re.compile(rf"{COMMITS}/([0-9]{{20}})\.json")
_DATA = re.compile(rf"topic={TOPIC_NAME}/hour=[0-9T-]{{1,32}}/[0-9a-f-]+\.parquet")


class ArchivedFile(msgspec.Struct, frozen=True):
    """A Parquet file: all messages of a topic id from `first` to before `next`, of one hour."""

    path: str
    topic: str
    topic_id: str
    hour: str
    first: int
    next: int
    value_bytes: int  # of the messages, uncompressed
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
    """A gap of the daemon, left by a repair with --accept-loss: no file has these messages."""

    topic: str
    topic_id: str
    first: int
    next: int

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.first, self.next)


class ManifestCommit(msgspec.Struct, frozen=True):
    run: str  # random, so that a process recognizes its own commit
    time_ms: int
    what: str
    added: list[ArchivedFile] = []
    removed: list[str] = []
    lost: list[LostOffsets] = []
    format: Literal[1] = 1
    is_all: bool = False  # `added` and `lost` are the whole state


class CommitConflict(Exception):
    """Another commit has archived or replaced the same messages. Read the state again."""


@dataclass(frozen=True, slots=True)
class ManifestState:
    """The archive as of commit `number`; 0 if there is no commit."""

    number: int = 0
    files: dict[str, ArchivedFile] = field(default_factory=dict)
    lost: tuple[LostOffsets, ...] = ()

    def of(self, topic_id: str) -> list[ArchivedFile]:
        """The files of a topic, ordered by offset."""
        found = (file for file in self.files.values() if file.topic_id == topic_id)
        return sorted(found, key=lambda file: file.first)

    def covered(self, topic_id: str) -> list[OffsetRange]:
        """The offsets of a topic that are archived or lost."""
        lost = [lost.range for lost in self.lost if lost.topic_id == topic_id]
        return merge([*(file.range for file in self.of(topic_id)), *lost])

    @property
    def topics(self) -> dict[str, set[str]]:
        """The ids of each topic name; a topic that is created again gets a new id."""
        found: dict[str, set[str]] = {}
        every: list[ArchivedFile | LostOffsets] = [*self.files.values(), *self.lost]
        for one in every:
            found.setdefault(one.topic, set()).add(one.topic_id)
        return found

    def after(self, commit: ManifestCommit) -> ManifestState:
        """The next state; CommitConflict if the commit contradicts this one."""
        if commit.is_all:
            files = {file.path: file for file in commit.added}
            return ManifestState(self.number + 1, files, tuple(commit.lost))
        if not set(commit.removed) <= set(self.files):
            raise CommitConflict
        removed = set(commit.removed)
        files = {path: file for path, file in self.files.items() if path not in removed}
        kept = replace(self, files=files)
        for topic_id, new in _by_topic([*commit.added, *commit.lost]).items():
            twice = count_offsets(new) < sum(next_ - first for first, next_ in new)
            if twice or intersect(kept.covered(topic_id), new):
                raise CommitConflict
        files |= {file.path: file for file in commit.added}
        return ManifestState(self.number + 1, files, (*self.lost, *commit.lost))


def _by_topic(new: Iterable[ArchivedFile | LostOffsets]) -> dict[str, list[OffsetRange]]:
    found: dict[str, list[OffsetRange]] = {}
    for one in new:
        found.setdefault(one.topic_id, []).append(one.range)
    return found


class Manifest:
    """The commits of an archive."""

    def __init__(self, store: ArchiveStore) -> None:
        self.store = store

    def state(self) -> ManifestState:
        """The current state. Reads at most SNAPSHOT_INTERVAL commits."""
        numbers = sorted(self._numbers())
        if not numbers:
            return ManifestState()
        base = numbers[-1] - numbers[-1] % SNAPSHOT_INTERVAL
        state = ManifestState(max(0, base - 1))
        for number in range(max(1, base), numbers[-1] + 1):
            commit = self._read(number)
            try:
                state = state.after(commit)
            except CommitConflict:
                raise self._damaged(number, "it contradicts the previous commit") from None
        return state

    def existing(self) -> ManifestState:
        """The current state; ArchiveError if there is no archive."""
        state = self.state()
        if not state.number:
            raise ArchiveError(
                f"there is no archive at {self.store.url}; check the path, or create one with"
                f" `log-cli archive {self.store.url}`"
            )
        return state

    def commit(self, commit: ManifestCommit, state: ManifestState | None = None) -> ManifestState:
        """Publish a commit after those of others; CommitConflict if it contradicts them.

        `state` avoids a read; it may be outdated.
        """
        state = state or self.state()
        for _ in range(_MAX_ATTEMPTS):
            after = state.after(commit)
            if self.store.create(_name(after.number), _encode(commit, after)):
                return after
            state = self.state()
        raise ArchiveError(f"too many concurrent commits to {self.store.url}; try again")

    def recent(self, since_s: float) -> Iterator[ManifestCommit]:
        """The commits since this time."""
        for number in self._numbers(since_s):
            yield self._read(number)

    def _numbers(self, since_s: float = 0.0) -> Iterator[int]:
        for found in self.store.list(COMMITS):
            match = _NAME.fullmatch(found.path)
            if match and found.modified_s >= since_s:
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
                raise self._damaged(number, "it names a file that does not belong to an archive")
        return commit

    def _damaged(self, number: int, why: str) -> ArchiveError:
        return ArchiveError(
            f"{self.store.url} cannot be read: commit {_name(number)} is damaged ({why});"
            " restore it from a copy of the archive"
        )


def new_commit(run: str, what: str, **content: object) -> ManifestCommit:
    time_ms = time.time_ns() // 1_000_000
    return msgspec.convert({"run": run, "time_ms": time_ms, "what": what} | content, ManifestCommit)


def _encode(commit: ManifestCommit, after: ManifestState) -> bytes:
    if after.number % SNAPSHOT_INTERVAL == 0:
        added, lost = list(after.files.values()), list(after.lost)
        commit = msgspec.structs.replace(commit, added=added, lost=lost, is_all=True)
    return msgspec.json.encode(commit)


def _name(number: int) -> str:
    return f"{COMMITS}/{number:020d}.json"
