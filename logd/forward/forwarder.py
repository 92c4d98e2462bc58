"""The main loop: checks the files, collects lines in batches, and passes them to the output.

Each line is shipped exactly once because a batch and its note, with the positions of the files, are
written to the spool together. All other steps may be repeated. A file is in the snapshot before a
note refers to it, and a note is in the snapshot before its batch is removed from the spool.

One thread reads. The output has another one for sending, which calls `_save`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from logd.forward.file_content import Content, Identity, Stamp, checksum_of, tail_at
from logd.forward.file_matching import MatchedFiles, is_known_file
from logd.forward.lines import LineLimits, last_line_start
from logd.forward.path_reader import PathReader, RotationTimeouts
from logd.forward.paths import NO_MATCHES, PathPatterns, UnmatchedPatterns
from logd.forward.registry import (
    MAX_NOTE_BYTES,
    FileCheckpoint,
    FileState,
    Registry,
    SourceFile,
    encode_note,
    restored,
)
from logd.forward.rotated_files import file_time_ns, is_gone, is_rotated_name, list_generations
from logd.forward.spooled_output import SpoolContents, SpooledLines
from logd.forward.state_directory import EMPTY, StateDir
from logd.wire.text import counted

POLL_S = 0.2
MATCH_S = 1.0  # between expansions of globs, which are slower than checking known files
BATCH_BYTES = 1 << 18
FLUSH_S = 2.0  # for batches in flight when the forwarder is stopped
_POLL_BATCHES = 64  # then all files are checked again

Render = Callable[[bytes, str], bytes]  # from a line and its path to a message
Notify = Callable[[str], None]


class ForwardOutput(Protocol):
    """Batches are on disk when `push` returns, sent in order, and removed when acknowledged."""

    @property
    def last(self) -> int: ...
    def before_removal(self, call: Callable[[], None]) -> None: ...
    def push(self, messages: list[bytes], note: str) -> None: ...
    def waiting(self) -> SpooledLines: ...
    def flush(self, timeout_s: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class ForwardOptions:
    patterns: PathPatterns
    render: Render | None = None  # None: the line itself
    limits: LineLimits = LineLimits(1 << 18)
    timeouts: RotationTimeouts = RotationTimeouts()
    from_end: bool = False
    once: bool = False
    spool_bytes: int = 1 << 30
    poll_s: float = POLL_S


@dataclass(slots=True)
class Statistics:
    files: int = 0
    lines: int = 0
    bytes: int = 0
    cut_lines: int = 0

    def sentence(self, waiting: SpooledLines) -> str:
        text = (
            f"{counted(self.files, 'file')}, {counted(self.lines, 'line')},"
            f" {counted(self.bytes, 'byte')} read; {counted(waiting.batches, 'batch', 'batches')},"
            f" {counted(waiting.bytes, 'byte')} in the spool"
        )
        cut = f"; {counted(self.cut_lines, 'line')} truncated" if self.cut_lines else ""
        return text + cut


@dataclass(slots=True)
class _Batch:
    messages: list[bytes] = field(default_factory=list)
    checkpoints: dict[int, FileCheckpoint] = field(default_factory=dict)
    bytes: int = 0

    def is_full(self) -> bool:
        # Leaves room for one more file with the largest numbers.
        return self.bytes >= BATCH_BYTES or len(encode_note(self.checkpoints)) > MAX_NOTE_BYTES - 48


class InitialState(NamedTuple):
    """The state at the start."""

    registry: Registry
    is_first_run: bool


def load_state(state: StateDir, read_spool: Callable[[int], SpoolContents]) -> InitialState:
    """Apply the notes in the spool to the snapshot, and save the result.

    After that, the spool may remove the batches of an earlier process.
    """
    saved = state.load()
    found = read_spool((saved or EMPTY)["as_of"])
    registry = restored(saved or EMPTY, found.notes)
    if saved is None:
        registry.looked_ns = file_time_ns()  # files that were rotated before are not shipped
    state.save(lambda: registry.snapshot(found.last))
    return InitialState(registry, saved is None)


class Forwarder:
    def __init__(
        self,
        state: StateDir,
        initial: InitialState,
        output: ForwardOutput,
        options: ForwardOptions,
        notify: Notify,
    ) -> None:
        self.statistics = Statistics()
        self._state, self._output, self._options, self._notify = state, output, options, notify
        self._registry, self._is_first_run = initial
        self._readers: dict[str, PathReader] = {}
        self._readers_in_turn: deque[PathReader] = deque()
        self._matched, self._unmatched = NO_MATCHES, UnmatchedPatterns()
        self._reported = set[tuple[Identity, Stamp]]()  # changed files that the readers know about
        self._looks_ns = deque([self._registry.looked_ns], maxlen=2)
        self._unreadable = set[str]()
        self._match_due_s = 0.0
        self._is_full = False
        self._stop = threading.Event()
        self._report = threading.Event()
        output.before_removal(self._save)

    def stop(self) -> None:
        """Make `run` return. May be called from a signal handler."""
        self._stop.set()

    def report(self) -> None:
        self._report.set()

    def run(self) -> None:
        """Until `stop`; with `once`, until everything is read and acknowledged."""
        while not self._stop.is_set():
            moved = self.poll(time.monotonic())
            if self._options.once and not moved and self._is_settled():
                break
            if self._report.is_set():
                self._report.clear()
                self._notify(self.summary())
            if not moved:
                self._stop.wait(self._options.poll_s)
        self._finish()

    def poll(self, now_s: float) -> bool:
        """Check all files and ship new lines. Whether anything was read."""
        self._match(now_s)
        self._refresh(now_s)
        moved = False
        for _ in range(_POLL_BATCHES):
            if self._stop.is_set() or not self._has_room():
                break
            batch = self._collect(now_s)
            if not batch.messages:
                break
            self._push(batch)
            moved = True
        return moved

    def summary(self) -> str:
        self.statistics.files = len(self._readers)
        return self.statistics.sentence(self._output.waiting())

    def _is_settled(self) -> bool:
        return not self._is_full and all(reader.is_settled for reader in self._readers.values())

    def _finish(self) -> None:
        if self._options.once:
            while not self._stop.is_set() and not self._output.flush(FLUSH_S):
                pass
        else:
            self._output.flush(FLUSH_S)
        self._save()

    # -- files ------------------------------------------------------------------------------------

    def _match(self, now_s: float) -> None:
        if now_s < self._match_due_s:
            return
        self._match_due_s = now_s + MATCH_S
        # A new path may have been rotated since the last expansion, or even during it, when it had
        # no file for a moment. So the time of the expansion before that is used, and it does not
        # advance while the files of a path are not identified.
        if all(reader.is_settled for reader in self._readers.values()):
            self._registry.looked_ns = self._looks_ns[0]
            self._looks_ns.append(file_time_ns())
        self._matched = self._options.patterns.expand()
        for text in self._unmatched.changes(self._matched):
            self._notify(text)
        if not self._readers:
            _drop_gone(self._registry, self._matched.identities)
        known = {source.base for source in self._registry.sources.values()}
        for path in [*known, *self._bases(known), *self._rotated_away()]:
            if path not in self._readers:
                self._add(path)
        self._notify_readers()

    def _notify_readers(self) -> None:
        """Make readers match their files again if a matched file that is named like a rotated one
        has changed; they do not check these otherwise."""
        sources = self._registry.sources.values()
        known = {(source.identity, Stamp(source.size, source.mtime_ns)) for source in sources}
        changed = {(i, stamp) for i, stamp in self._matched.stamps.items() if stamp.size} - known
        for identity, _ in changed - self._reported:
            path = self._matched.identities[identity]
            if path in self._readers:
                continue
            for base, reader in self._readers.items():
                if is_rotated_name(base, path):
                    reader.mark_changed()
        self._reported = changed

    def _bases(self, known: set[str]) -> Iterator[str]:
        """The matched paths that are not rotated or renamed files of others."""
        read = {path for path, one in self._readers.items() if one.queue or not one.is_settled}
        here = read if self._readers else known  # their files may be missing for a moment
        bases = {*self._matched.paths, *here}
        for path in self._matched.paths:
            of_another = any(is_rotated_name(base, path) for base in bases)
            is_read = path in self._readers
            if not of_another and (is_read or not is_known_file(self._registry, path)):
                yield path

    def _rotated_away(self) -> Iterator[str]:
        """Paths without a file, whose first file was created and rotated since `looked_ns`.

        Once the path has a file again, that one would be taken for a file that is not shipped.
        """
        since_ns = self._registry.looked_ns
        for path in self._options.patterns.plain():
            if path not in self._matched.paths and any(
                listed.mtime_ns >= since_ns and not is_known_file(self._registry, listed.path)
                for listed in list_generations(path)
            ):
                yield path

    def _add(self, path: str) -> None:
        self._take_over(path)
        reader = PathReader(path, self._registry, self._options.limits, self._options.timeouts)
        self._readers[path] = reader
        self._readers_in_turn.append(reader)

    def _take_over(self, path: str) -> None:
        """Files that were found before the path, such as `app.log.1`, are its rotated files."""
        for base in [base for base in self._readers if is_rotated_name(path, base)]:
            self._readers_in_turn.remove(self._readers.pop(base))
            for source in self._registry.of(base):
                source.base = path

    def _refresh(self, now_s: float) -> None:
        changed = False
        for reader in self._readers.values():
            found = reader.refresh(now_s, self._matched)
            if found is not None:
                changed = True
                self._report_matches(found)
                self._warn_if_unreadable(reader)
        if changed:
            self._save()
        self._is_first_run = False

    def _report_matches(self, found: MatchedFiles) -> None:
        for source in found.new:
            if self._is_first_run and self._options.from_end and source.content is not None:
                _skip_to_end(source, source.content, self._options.limits)
        for source in found.lost:
            self._notify(
                f"{source.base}: at least"
                f" {counted(source.size - source.checkpoint.position, 'byte')} removed before they"
                " were read; rotate later, or keep rotated files in the same directory"
            )

    def _warn_if_unreadable(self, reader: PathReader) -> None:
        if not reader.is_unreadable:
            self._unreadable.discard(reader.base)
        elif reader.base not in self._unreadable:
            self._unreadable.add(reader.base)
            self._notify(f"{reader.base} cannot be read; check its permissions. Retrying")

    # -- batches ----------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        full = self._output.waiting().bytes >= self._options.spool_bytes
        if full and not self._is_full:
            self._notify("the spool is full; reading is paused until the daemon accepts batches")
        if self._is_full and not full:
            self._notify("the spool has free space; reading continues")
        self._is_full = full
        return not full

    def _collect(self, now_s: float) -> _Batch:
        """One chunk of each path in turn, until there are no more or the batch is full."""
        batch = _Batch()
        silent = 0
        while silent < len(self._readers_in_turn) and not batch.is_full():
            reader = self._readers_in_turn[0]
            self._readers_in_turn.rotate(-1)
            taken = reader.next_chunk(now_s)
            if taken is None:
                silent += 1
                continue
            silent = 0
            source, chunk = taken
            batch.messages += self._rendered(chunk.lines, reader.base)
            batch.bytes = sum(map(len, batch.messages)) + len(batch.messages)
            batch.checkpoints[source.id] = FileCheckpoint(chunk.end, checksum_of(chunk.tail))
            self.statistics.lines += len(chunk.lines)
            self.statistics.cut_lines += chunk.cut_lines
        return batch

    def _rendered(self, lines: list[bytes], base: str) -> Sequence[bytes]:
        render = self._options.render
        return lines if render is None else [render(line, base) for line in lines]

    def _push(self, batch: _Batch) -> None:
        # Set first: as soon as the spool has the batch, snapshots must include its checkpoints.
        self._registry.pending = (self._output.last + 1, batch.checkpoints)
        self._output.push(batch.messages, encode_note(batch.checkpoints))
        self._registry.advance(batch.checkpoints)
        self.statistics.bytes += batch.bytes

    def _save(self) -> None:
        last = self._output.last  # read before the positions, see `snapshot`
        self._state.save(lambda: self._registry.snapshot(last))


def _skip_to_end(source: SourceFile, content: Content, limits: LineLimits) -> None:
    source.at = last_line_start(content, content.size(), limits.line_bytes)
    source.tail = tail_at(content, source.at)
    source.checkpoint = FileCheckpoint(source.at, checksum_of(source.tail))


def _drop_gone(registry: Registry, elsewhere: Collection[Identity]) -> None:
    """Remove paths whose files are all finished and gone."""
    for base in {source.base for source in registry.sources.values()}:
        sources = registry.of(base)
        is_finished = all(source.state is FileState.finished for source in sources)
        is_elsewhere = any(source.identity in elsewhere for source in sources)
        if is_finished and not is_elsewhere and is_gone(base):
            with registry.lock:
                for source in sources:
                    registry.drop(source)
