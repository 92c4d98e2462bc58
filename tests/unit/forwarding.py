"""A forwarder without a daemon or a process: real files, a spool in memory, time by hand, kills.

`Outbox` is what survives a kill of the spool, as far as the forwarder can tell. `World` writes and
rotates as programs and logrotate do, one step at a time, so nothing is ever lost by them.
"""

from __future__ import annotations

import gzip
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from logd.forward.forwarder import Forwarder, ForwardOptions, load_state
from logd.forward.lines import LineLimits
from logd.forward.path_reader import RotationTimeouts
from logd.forward.paths import PathPatterns
from logd.forward.spooled_output import SpoolContents, SpooledLines
from logd.forward.state_directory import StateDir


class Killed(BaseException):
    """The process ends here."""


class Outbox:
    def __init__(self) -> None:
        self.last = self.acknowledged = 0
        self.batches: dict[int, tuple[list[bytes], str]] = {}
        self.delivered: list[bytes] = []
        self.kill_before = self.kill_behind = False
        self.is_quick = False  # a batch is acknowledged before `push` has returned
        self.removal: Callable[[], None] = lambda: None
        self.full = False

    def before_removal(self, call: Callable[[], None]) -> None:
        self.removal = call

    def push(self, messages: list[bytes], note: str) -> None:
        assert len(note) <= 300
        assert " " not in note
        if self.kill_before:
            raise Killed
        self.last += 1
        self.batches[self.last] = (messages, note)
        self.delivered += messages
        if self.is_quick:
            self.acknowledge()
        if self.kill_behind:
            raise Killed

    def acknowledge(self) -> None:
        """Everything; the batches go, and their notes with them."""
        self.removal()
        self.batches.clear()
        self.acknowledged = self.last

    def waiting(self) -> SpooledLines:
        return SpooledLines(self.last - self.acknowledged, (1 << 40) if self.full else 0)

    def flush(self, timeout_s: float) -> bool:
        return True

    def read_spool(self, after: int) -> SpoolContents:
        notes = [(n, note) for n, (_, note) in sorted(self.batches.items()) if n > after]
        return SpoolContents(self.last, notes)


class Life:
    """One life of a forwarder: started, turned by hand, then killed."""

    def __init__(self, directory: Path, outbox: Outbox, options: ForwardOptions) -> None:
        self.said: list[str] = []
        self.outbox = outbox
        self._state = StateDir(directory, "app")
        outbox.kill_before = outbox.kill_behind = False
        self._initial = load_state(self._state, outbox.read_spool)
        self.forwarder = Forwarder(self._state, self._initial, outbox, options, self.said.append)
        self.now_s = 1000.0

    def turn(self, later_s: float = 2.0) -> bool:
        """By default so much later that globs are matched anew and last lines are overdue."""
        self.now_s += later_s
        return self.forwarder.poll(self.now_s)

    def settle(self) -> None:
        """Until everything that there is has been shipped."""
        for _ in range(4):
            while self.turn():
                pass

    def kill(self) -> None:
        self.outbox.removal = lambda: None
        for source in self._initial.registry.sources.values():
            source.close()
        del self._state._lock

    @property
    def open_files(self) -> int:
        return sum(s.content is not None for s in self._initial.registry.sources.values())


def options(*patterns: Path | str, **settings: object) -> ForwardOptions:
    chosen: dict[str, object] = {"limits": LineLimits(1 << 18), "timeouts": RotationTimeouts()}
    return ForwardOptions(PathPatterns([str(p) for p in patterns]), **{**chosen, **settings})  # type: ignore[arg-type]


class World:
    """A program that writes numbered lines to `app.log`, and a logrotate that keeps everything."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.path = directory / "app.log"
        self.written: list[bytes] = []
        self._generations = 0
        self._pending = b""
        self._is_copied = False

    def line(self, pad: int = 0) -> None:
        whole = b"%d. line %s" % (len(self.written), b"x" * pad)
        self.append(whole.removeprefix(self._pending) + b"\n")
        self.written.append(whole)
        self._pending = b""

    def half_a_line(self) -> None:
        if not self._pending:
            self._pending = b"%d. li" % len(self.written)
            self.append(self._pending)

    def append(self, data: bytes) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(data)
        self._touch(self.path)

    def _touch(self, path: Path) -> None:
        """Times as fine as the clock: a file system's own may be the same for some milliseconds.

        The time of change must be near: else the file looks as if it had been renamed since."""
        now_ns = 0
        while path.stat().st_ctime_ns - now_ns > 5_000_000:
            now_ns = time.time_ns()
            os.utime(path, ns=(now_ns, now_ns))

    def _name(self, n: int, kind: str = "") -> Path:
        return self.path.with_name(f"app.log.{n}{kind}")

    def _shift(self) -> None:
        """Every generation gets the next number."""
        for n in range(self._generations, 0, -1):
            for kind in ("", ".gz"):
                if self._name(n, kind).exists():
                    self._name(n, kind).rename(self._name(n + 1, kind))
        self._generations += 1

    def rotate(self) -> None:
        """By rename. A program ends its line before it changes files."""
        if self.path.exists():
            if self._pending:
                self.line()
            self._shift()
            self.path.rename(self._name(1))
            self.path.touch()
            self._touch(self.path)

    def copytruncate(self) -> None:
        if self.path.exists():
            if self._pending:
                self.line()
            self.copy()
            self.truncate()

    def begin_copytruncate(self) -> None:
        """Up to the truncation. Whoever writes next has to end it first: else lines are lost."""
        if self.path.exists():
            if self._pending:
                self.line()
            self.copy()
            self._is_copied = True

    def end_copytruncate(self) -> None:
        if self._is_copied:
            self._is_copied = False
            self.truncate()

    def copy(self) -> None:
        """The first half of a `copytruncate`."""
        self._shift()
        shutil.copyfile(self.path, self._name(1))
        self._touch(self._name(1))

    def truncate(self) -> None:
        os.truncate(self.path, 0)
        self._touch(self.path)

    def copy_only(self) -> None:
        """A backup by hand."""
        copy = self.path.with_name("app.log.9999")
        if self.path.exists() and not copy.exists():
            shutil.copyfile(self.path, copy)
            self._touch(copy)

    def compress(self, n: int = 1) -> None:
        plain, archive = self._name(n), self._name(n, ".gz")
        if plain.exists():
            status = plain.stat()
            archive.write_bytes(gzip.compress(plain.read_bytes()))
            os.utime(archive, ns=(status.st_atime_ns, status.st_mtime_ns))
            plain.unlink()
