"""The loop: look at the files, gather lines into batches, hand them to the outbox.

Exactly once rests on one thing: a batch and the note that says how far its sources were read reach
the spool together, or not at all. Everything else may be done twice. Before a note can name a
source, the source is in the snapshot; before the spool lets go of a batch, its note is.

One thread reads. The outbox has its own for sending, which calls `_save`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from logd.forward.file_content import Content, Identity, Stamp, check_of, tail_at
from logd.forward.file_matching import MatchedFiles, Places, is_same_file
from logd.forward.file_positions import (
    MAX_NOTE_BYTES,
    FileMark,
    ForwardState,
    Register,
    SourceFile,
    note_of,
    restored,
)
from logd.forward.lines import LineLimits, last_line_start
from logd.forward.paths import NOTHING, Patterns, Unmatched
from logd.forward.rotated_files import file_time_ns, is_gone, is_sibling, listing, opened_plain
from logd.forward.rotation import RotationChain, RotationWait, identity_of
from logd.forward.spooled_output import Leftover, SpooledLines
from logd.forward.state_directory import EMPTY, StateDir
from logd.wire.text import counted

POLL_S = 0.2
MATCH_S = 1.0  # how often globs are expanded: a listing costs more than a look at a file
BATCH_BYTES = 1 << 18
FLUSH_S = 2.0  # for what is on its way when the forwarder is told to stop
_TURN_BATCHES = 64  # then the other files, and rotations, get a look

Render = Callable[[bytes, str], bytes]  # a line and its path to a message
Say = Callable[[str], None]


class ForwardOutput(Protocol):
    """Where batches go: on disk when `push` returns, sent in order, removed when acknowledged."""

    @property
    def last(self) -> int: ...
    def before_removal(self, call: Callable[[], None]) -> None: ...
    def push(self, messages: list[bytes], note: str) -> None: ...
    def waiting(self) -> SpooledLines: ...
    def flush(self, timeout_s: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class ForwardOptions:
    patterns: Patterns
    render: Render | None = None  # None: the line itself
    limits: LineLimits = LineLimits(1 << 18)
    patience: RotationWait = RotationWait()
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
            f" {counted(waiting.bytes, 'byte')} wait in the spool"
        )
        cut = f"; {counted(self.cut_lines, 'line')} too long and cut" if self.cut_lines else ""
        return text + cut


@dataclass(slots=True)
class _Batch:
    messages: list[bytes] = field(default_factory=list)
    moves: dict[int, FileMark] = field(default_factory=dict)
    bytes: int = 0

    def is_full(self) -> bool:
        # Room for one more source with the largest numbers.
        return self.bytes >= BATCH_BYTES or len(note_of(self.moves)) > MAX_NOTE_BYTES - 48


class Memory(NamedTuple):
    """What is known at the start."""

    register: Register
    is_first_run: bool


def remember(state: StateDir, leftover: Callable[[int], Leftover]) -> Memory:
    """The snapshot and the notes behind it, saved as one new snapshot.

    From then on the spool may remove whatever an earlier life left in it.
    """
    saved = state.load()
    found = leftover((saved or EMPTY)["as_of"])
    register = restored(saved or EMPTY, found.notes)
    if saved is None:
        register.looked_ns = file_time_ns()  # what was rotated before this is not ours to ship
    state.save(lambda: register.snapshot(found.last))
    return Memory(register, saved is None)


class Forwarder:
    def __init__(
        self,
        state: StateDir,
        memory: Memory,
        outbox: ForwardOutput,
        options: ForwardOptions,
        say: Say,
    ) -> None:
        self.statistics = Statistics()
        self._state, self._outbox, self._options, self._say = state, outbox, options, say
        self._register, self._is_first_run = memory
        self._chains: dict[str, RotationChain] = {}
        self._turn: deque[RotationChain] = deque()
        self._matched, self._unmatched = NOTHING, Unmatched()
        self._told = set[tuple[Identity, Stamp]]()  # files that the chains were last told of
        self._looks_ns = deque([self._register.looked_ns], maxlen=2)
        self._unreadable = set[str]()
        self._match_due_s = 0.0
        self._is_full = False
        self._stop = threading.Event()
        self._report = threading.Event()
        outbox.before_removal(self._save)

    def stop(self) -> None:
        """Ask `run` to end. May be called from a signal handler."""
        self._stop.set()

    def report(self) -> None:
        self._report.set()

    def run(self) -> None:
        """Until `stop`; with `once`, until everything is read and acknowledged."""
        while not self._stop.is_set():
            moved = self.turn(time.monotonic())
            if self._options.once and not moved and self._is_settled():
                break
            if self._report.is_set():
                self._report.clear()
                self._say(self.summary())
            if not moved:
                self._stop.wait(self._options.poll_s)
        self._finish()

    def turn(self, now_s: float) -> bool:
        """One look at everything. Was anything read?"""
        self._match(now_s)
        self._look(now_s)
        moved = False
        for _ in range(_TURN_BATCHES):
            if self._stop.is_set() or not self._has_room():
                break
            batch = self._gather(now_s)
            if not batch.messages:
                break
            self._push(batch)
            moved = True
        return moved

    def summary(self) -> str:
        self.statistics.files = len(self._chains)
        return self.statistics.sentence(self._outbox.waiting())

    def _is_settled(self) -> bool:
        return not self._is_full and all(chain.is_settled for chain in self._chains.values())

    def _finish(self) -> None:
        if self._options.once:
            while not self._stop.is_set() and not self._outbox.flush(FLUSH_S):
                pass
        else:
            self._outbox.flush(FLUSH_S)
        self._save()

    # -- which files ------------------------------------------------------------------------------

    def _match(self, now_s: float) -> None:
        if now_s < self._match_due_s:
            return
        self._match_due_s = now_s + MATCH_S
        # A path that is new now may have been rotated since the last look, or even while that one
        # was under way, when it had no file for a moment. At the one before it had none. And what
        # was found, but changed while it was looked at, is still as new as it was.
        if all(chain.is_settled for chain in self._chains.values()):
            self._register.looked_ns = self._looks_ns[0]
            self._looks_ns.append(file_time_ns())
        self._matched = self._options.patterns.expand()
        for text in self._unmatched.news(self._matched):
            self._say(text)
        if not self._chains:
            _drop_gone(self._register, self._matched.identities)
        known = {source.base for source in self._register.sources.values()}
        for path in [*known, *self._bases(known), *self._rotated_away()]:
            if path not in self._chains:
                self._add(path)
        self._tell_chains()

    def _tell_chains(self) -> None:
        """Let files be looked at that the globs match and whose names are those of rotated ones,
        when they have changed: a chain looks at these only when it knows that it should."""
        sources = self._register.sources.values()
        known = {(source.identity, Stamp(source.size, source.mtime_ns)) for source in sources}
        changed = {(i, stamp) for i, stamp in self._matched.stamps.items() if stamp.size} - known
        for identity, _ in changed - self._told:
            path = self._matched.identities[identity]
            if path in self._chains:
                continue
            for base, chain in self._chains.items():
                if is_sibling(base, path):
                    chain.expect_change()
        self._told = changed

    def _bases(self, known: set[str]) -> Iterator[str]:
        """The matched paths that are files of their own, not known ones under another name."""
        read = {base for base, chain in self._chains.items() if chain.queue or not chain.is_settled}
        here = read if self._chains else known  # a file of these may be away for a moment
        bases = {*self._matched.paths, *here}
        for path in self._matched.paths:
            of_another = any(is_sibling(base, path) for base in bases)
            if not of_another and (path in self._chains or not self._is_known(path)):
                yield path

    def _is_known(self, path: str) -> bool:
        identity = identity_of(path)
        sources = [s for s in self._register.sources.values() if s.identity == identity]
        entry = opened_plain(path) if sources else None
        if entry is None:
            return any(source.content is not None for source in sources)
        try:
            return any(is_same_file(entry, source) for source in sources)
        finally:
            entry.content.close()

    def _rotated_away(self) -> Iterator[str]:
        """Paths with no file now whose first one came and went since the last look but one.

        When the next one is there, the first would be taken for one of before our time.
        """
        since_ns = self._register.looked_ns
        for path in self._options.patterns.plain():
            if path not in self._matched.paths and any(
                named.mtime_ns >= since_ns and not self._is_known(named.path)
                for named in listing(path)
            ):
                yield path

    def _add(self, path: str) -> None:
        self._adopt(path)
        chain = RotationChain(path, self._register, self._options.limits, self._options.patience)
        self._chains[path] = chain
        self._turn.append(chain)

    def _adopt(self, path: str) -> None:
        """What was found before its path was, such as `app.log.1`, is an older file of the path."""
        for base in [base for base in self._chains if is_sibling(path, base)]:
            self._turn.remove(self._chains.pop(base))
            for source in self._register.of(base):
                source.base = path

    def _look(self, now_s: float) -> None:
        places = Places(self._matched.paths, self._matched.identities)
        changed = False
        for chain in self._chains.values():
            found = chain.look(now_s, places)
            if found is not None:
                changed = True
                self._take_over(found)
                self._complain(chain)
        if changed:
            self._save()
        self._is_first_run = False

    def _take_over(self, found: MatchedFiles) -> None:
        for source in found.new:
            if self._is_first_run and self._options.from_end and source.content is not None:
                _skip_to_end(source, source.content, self._options.limits)
        for source in found.lost:
            self._say(
                f"{source.base}: {counted(source.size - source.mark.position, 'byte')} or more"
                " removed before they could be read; rotate later, or keep a copy beside the file"
            )

    def _complain(self, chain: RotationChain) -> None:
        if not chain.is_unreadable:
            self._unreadable.discard(chain.base)
        elif chain.base not in self._unreadable:
            self._unreadable.add(chain.base)
            self._say(f"{chain.base} cannot be read; allow this user to read it. It is tried again")

    # -- batches ----------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        full = self._outbox.waiting().bytes >= self._options.spool_bytes
        if full and not self._is_full:
            self._say("the spool is full: reading stops until the daemon takes what waits")
        if self._is_full and not full:
            self._say("there is room in the spool: reading goes on")
        self._is_full = full
        return not full

    def _gather(self, now_s: float) -> _Batch:
        """One piece of each file in turn, until there is nothing more or the batch is full."""
        batch = _Batch()
        silent = 0
        while silent < len(self._turn) and not batch.is_full():
            chain = self._turn[0]
            self._turn.rotate(-1)
            taken = chain.take(now_s)
            if taken is None:
                silent += 1
                continue
            silent = 0
            source, piece = taken
            batch.messages += self._rendered(piece.lines, chain.base)
            batch.bytes = sum(map(len, batch.messages)) + len(batch.messages)
            batch.moves[source.id] = FileMark(piece.end, check_of(piece.tail))
            self.statistics.lines += len(piece.lines)
            self.statistics.cut_lines += piece.cut_lines
        return batch

    def _rendered(self, lines: list[bytes], base: str) -> Sequence[bytes]:
        render = self._options.render
        return lines if render is None else [render(line, base) for line in lines]

    def _push(self, batch: _Batch) -> None:
        # Announced first: from the moment the spool has the batch, a snapshot must have its moves.
        self._register.pending = (self._outbox.last + 1, batch.moves)
        self._outbox.push(batch.messages, note_of(batch.moves))
        self._register.move(batch.moves)
        self.statistics.bytes += batch.bytes

    def _save(self) -> None:
        last = self._outbox.last  # before the positions are looked at, see `snapshot`
        self._state.save(lambda: self._register.snapshot(last))


def _skip_to_end(source: SourceFile, content: Content, limits: LineLimits) -> None:
    source.at = last_line_start(content, content.size(), limits.line_bytes)
    source.tail = tail_at(content, source.at)
    source.mark = FileMark(source.at, check_of(source.tail))


def _drop_gone(register: Register, elsewhere: Collection[Identity]) -> None:
    """Forget paths that are no more, with nothing left to read and no file left to mistake."""
    for base in {source.base for source in register.sources.values()}:
        sources = register.of(base)
        is_done = all(s.state is ForwardState.done and s.identity not in elsewhere for s in sources)
        if is_done and is_gone(base):
            with register.lock:
                for source in sources:
                    register.drop(source)
