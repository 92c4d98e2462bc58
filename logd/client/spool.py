"""Batches on the producer's disk until the server has acknowledged them.

    <directory>/lock          one writer at a time
    <directory>/state         the producer's name, and the last acknowledged number
    <directory>/<n>.spool     batches from number n on, in the format of a partition

A batch has the id `spool:<n>`, followed by its note: one word that the program can read back. What
is read from the spool is sent with the producer's name.

Invariants: numbers grow by one. A batch for which `append` has returned survives the process, and
with `fsync` the machine; a batch for which it raised is not stored. The state may be out of date:
batches that were acknowledged since are sent again with the same number, and the server recognizes
them. A segment is removed when all of it is acknowledged and a newer segment has a batch, so the
newest note always exists.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from logd.batch import ScannedBatch, encode_header, scan
from logd.client.unacked import new_producer
from logd.errors import BadRequest, DamagedBatch
from logd.wire.commands import checked_producer
from logd.wire.requests import Push

SEGMENT_BYTES = 16 << 20
SAVE_EVERY = 256  # batches; well below the number that the server remembers per producer
_PRODUCER = "spool"
_NOTE = re.compile(r"[!-~]{1,300}")
_log = logging.getLogger("logd.spool")


class SpoolError(OSError):
    """The spool directory cannot be used. The text says what to do."""


class SpoolInUse(SpoolError):
    """Another writer uses the spool."""


@dataclass(slots=True)
class _Segment:
    first: int
    path: Path
    size: int = 0


class Spool:
    """`read` returns each batch once, in order; `forget` removes those up to a number.

    Besides `append`, which may run in another thread, use it from one thread at a time.
    """

    def __init__(
        self, directory: Path, *, fsync: bool = False, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.before_removal: Callable[[], None] = lambda: None
        self._directory, self.fsync, self._segment_bytes = directory, fsync, segment_bytes
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory / "lock")
        self._file = -1  # of the newest segment, while there is one
        try:
            self.producer, self.acknowledged = self._load_state()
            self._saved = self.last = self.acknowledged
            self._messages = self._time_ms = 0  # of the spool itself; they only have to grow
            self._segments: deque[_Segment] = deque()
            self.size = 0  # bytes on disk
            self._reading, self._read_at = 0, 0  # the segment and the position to read next
            self._open_segments()
            later = list(self._segments)[self._reading :]
            self.unread_bytes = sum(segment.size for segment in later) - self._read_at
            self._save_state()  # before anything is sent under the name
        except BaseException:
            self.abandon()
            raise

    def append(self, push: Push, messages: int, note: str = "-") -> int:
        """Store a batch and return its number."""
        assert push.sum is not None
        if not _NOTE.fullmatch(note):
            raise ValueError("a note is one word of 1 to 300 printable ASCII characters")
        if not self._segments or self._segments[-1].size >= self._segment_bytes:
            self._roll()
        number, segment = self.last + 1, self._segments[-1]
        self._time_ms = max(self._time_ms, time.time_ns() // 1_000_000)
        header = encode_header(
            self._messages, messages, len(push.body), self._time_ms, push.enc, push.sum,
            f"{_PRODUCER}:{number}", f"{note} ",
        )  # fmt: skip
        size = len(header) + len(push.body)
        try:
            _write(self._file, b"".join((header, push.body)), segment.size)
            if self.fsync:
                os.fdatasync(self._file)
        except BaseException:
            os.ftruncate(self._file, segment.size)
            raise
        # No call from here on: a signal must not separate the batch from its number.
        segment.size += size
        self.size += size
        self.unread_bytes += size
        self._messages += messages
        self.last = number
        return number

    def read(self, topic: str) -> tuple[int, Push, int] | None:
        """The next batch: its number, the push without an id, and its number of messages."""
        while self._reading < len(self._segments):
            segment = self._segments[self._reading]
            if self._read_at < segment.size:
                found = next(_scan(segment, self._read_at))
                self.unread_bytes -= found.end - self._read_at
                self._read_at, header = found.end, found.header
                push = Push(topic, bytes(found.body), header.enc, header.messages, header.sum)
                return _number(found), push, header.messages
            if segment is self._segments[-1]:
                break
            self._reading, self._read_at = self._reading + 1, 0
        return None

    def forget(self, number: int) -> None:
        """Everything up to this number is acknowledged or refused."""
        self.acknowledged = number
        filled = [segment for segment in self._segments if segment.size]
        done = sum(segment.first <= number + 1 for segment in filled[1:])
        if done:
            self.before_removal()
        while self._segments and done and self._segments[0] is not filled[done]:
            self._remove_oldest()
        if done or number - self._saved >= SAVE_EVERY:
            self._try_to_save_state()

    def _remove_oldest(self) -> None:
        segment = self._segments.popleft()
        segment.path.unlink(missing_ok=True)
        self.size -= segment.size
        self._reading -= 1
        if self._reading < 0:  # all of it was read, and nothing after it yet
            self._reading = self._read_at = 0

    def rename(self, producer: str) -> None:
        self.producer = producer
        self._save_state()

    def notes(self, after: int) -> Iterator[tuple[int, str]]:
        """Number and note of each batch in the spool that is newer than `after`, oldest first."""
        for segment in list(self._segments):
            try:
                for found in _scan(segment, bodies=False):
                    if _number(found) > after:
                        yield _number(found), _note(segment, found)
            except FileNotFoundError:
                continue  # acknowledged and removed in the meantime

    def close(self) -> None:
        if self._lock < 0:
            return
        try:
            self._try_to_save_state()
        finally:
            self.abandon()

    # -- segments -------------------------------------------------------------------------------

    def _open_segments(self) -> None:
        paths = sorted(self._directory.glob("[0-9]" * 20 + ".spool"))
        for path in paths:
            segment = _Segment(int(path.stem), path, path.stat().st_size)
            self._check(segment, is_last=path == paths[-1])
            self._segments.append(segment)
            self.size += segment.size
        if paths:
            self._file = os.open(paths[-1], os.O_RDWR)

    def _check(self, segment: _Segment, is_last: bool) -> None:
        """Read a segment of an earlier process; cut an unfinished batch at the very end."""
        end, last = 0, segment.first - 1
        try:
            for found in _scan(segment):
                end, last = found.end, _number(found)
                if last <= self.acknowledged:
                    self._reading, self._read_at = len(self._segments), end
                self._messages, self._time_ms = found.header.next, found.header.time_ms
        except DamagedBatch as damage:
            if not is_last:
                raise SpoolError(
                    f"{segment.path} is damaged at byte {end} ({damage.reason});"
                    " move it away to continue without its batches"
                ) from None
            _log.warning(
                "%s ended in an unfinished batch and was cut at byte %d", segment.path, end
            )
            os.truncate(segment.path, end)
            segment.size = end
        self.last = max(self.last, last)

    def _roll(self) -> None:
        path = self._directory / f"{self.last + 1:020d}.spool"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._segments.append(_Segment(self.last + 1, path))
        if self.fsync:
            _sync_directory(self._directory)

    def abandon(self) -> None:
        """Close the files as they are. A forked child does this with its copies."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    # -- the state ------------------------------------------------------------------------------

    def _load_state(self) -> tuple[str, int]:
        try:
            state = json.loads((self._directory / "state").read_bytes())
            return checked_producer(state["producer"]), int(state["acknowledged"])
        except FileNotFoundError:
            return new_producer(), 0
        except (ValueError, KeyError, TypeError, BadRequest) as error:
            raise SpoolError(
                f"{self._directory}/state is damaged ({error}); remove it to continue: what is in"
                " the spool is then sent with a new producer name, and may be stored twice"
            ) from None

    def _try_to_save_state(self) -> None:
        """The state may be out of date, so an error is only logged."""
        try:
            self._save_state()
        except OSError as error:
            _log.warning("%s/state could not be written: %s", self._directory, error)

    def _save_state(self) -> None:
        content = {"producer": self.producer, "acknowledged": self.acknowledged}
        path = self._directory / "state"
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(json.dumps(content).encode())
            if self.fsync:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
        if self.fsync:
            _sync_directory(self._directory)
        self._saved = self.acknowledged


def open_spool(directory: Path, limit_bytes: int, *, fsync: bool) -> Spool:
    """A spool with segments so small that some can be removed before the limit is reached."""
    segment_bytes = min(SEGMENT_BYTES, max(1, limit_bytes // 8))
    return Spool(directory, fsync=fsync, segment_bytes=segment_bytes)


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SpoolInUse(
            f"another writer uses the spool {path.parent}; each writer needs its own directory"
        ) from None
    return descriptor


def _scan(segment: _Segment, position: int = 0, *, bodies: bool = True) -> Iterator[ScannedBatch]:
    with segment.path.open("rb", buffering=0) as file:
        yield from scan(
            lambda at, size: os.pread(file.fileno(), size, at), position, segment.size,
            bodies=bodies, window_bytes=1 << 17,
        )  # fmt: skip


def _number(found: ScannedBatch) -> int:
    return int(found.header.id.partition(":")[2] or 0)


def _note(segment: _Segment, found: ScannedBatch) -> str:
    """The word between the id and the header's checksum."""
    with segment.path.open("rb") as file:
        file.seek(found.position)
        return file.read(found.header.head_size).split(b" ")[-2].decode("ascii")


def _write(file: int, data: bytes, position: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, position)
        rest, position = rest[written:], position + written


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
