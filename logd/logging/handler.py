"""A handler for Python's `logging` that costs the program neither time nor its life.

`emit` formats a record and offers it to a writer that never waits. `logging` calls it with the
handler's lock held; no other lock is held when that one is taken.

A signal handler or a finalizer may log at any moment, also while its thread is inside the writer
and holds the writer's lock, and even in the writer's own thread. Such a record is set aside, and
handed over by whoever comes next: a second call into the writer would wait for itself.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from logd.client.dropping_writer import DroppingWriter, OnRefused
from logd.client.spool import SpoolError
from logd.client.writer import QUEUE_BYTES, SPOOL_BYTES, Writer
from logd.logging import forks
from logd.logging.records import MAX_BYTES, JsonFormatter, cut_text, text_of, to_bytes
from logd.wire.addresses import Target

CLOSE_S = 2.0
MAX_ASIDE = 1000
MAX_SPOOLS = 1000  # processes that share a spool directory
_TAKEN = "another writer uses the spool"
_MARK_BYTES = 100  # a mark that says that something was cut is shorter than that


class LogdHandler(logging.Handler):
    """Sends records to a topic: as JSON, or as text where it is given another formatter.

    `fields` go into every JSON record, and `include` names more of the record's own: pid, process,
    thread, file, line, function. A message has at most `max_bytes`; longer ones are cut.
    When `queue_bytes` wait for the daemon, records are dropped. With a `spool` directory they wait
    there, up to `spool_bytes`, and survive the program; each process takes a directory in it.
    `flush` and `close` wait for at most `close_s`, and raise nothing.

    Counts, of this process: `emitted` records came; `sent` of them were taken, and `dropped` did
    not fit; `failed` of those sent were refused, or had no answer when the handler was closed.
    `acknowledged` messages are stored, reports of drops included. `errors` were handled.
    """

    _has_ended = True  # till it is whole: `logging` closes also what could not be made

    def __init__(
        self,
        target: Target,
        topic: str,
        *,
        level: int | str = logging.NOTSET,
        fields: Mapping[str, Any] | None = None,
        include: Collection[str] = (),
        max_bytes: int = MAX_BYTES,
        queue_bytes: int = QUEUE_BYTES,
        spool: Path | str | None = None,
        spool_bytes: int = SPOOL_BYTES,
        compress: bool = False,
        timeout_s: float = 10.0,
        close_s: float = CLOSE_S,
    ) -> None:
        """Raises where a setting is wrong, or the spool cannot be used; nothing else does."""
        super().__init__(level)
        # Now already: `basicConfig` gives a text formatter to a handler that has none.
        self.formatter = JsonFormatter(fields, include, max_bytes)
        self.errors = 0
        self._topic, self._max_bytes, self._close_s = topic, max_bytes, close_s
        self._aside: deque[tuple[logging.LogRecord, bytes] | None] = deque()
        self._inside: set[int] = set()  # threads that are in the writer

        def make(spool: Path | None, on_refused: OnRefused) -> Writer:
            forks.flush_with_worker(self)
            return Writer(
                target, topic, full="drop", connect="later", patience_s=math.inf,
                queue_bytes=queue_bytes, spool=spool, spool_bytes=spool_bytes,
                compress=compress, timeout_s=timeout_s, on_refused=on_refused,
            )  # fmt: skip

        assert self.lock is not None
        self._spools = _Spools(Path(spool) if spool else None, make)
        self._writer = DroppingWriter(self.lock, self._spools.writer, self._report)
        self._has_ended = False
        forks.watch(self)

    @property
    def emitted(self) -> int:
        return self._writer.offered

    @property
    def sent(self) -> int:
        return self._writer.sent

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    @property
    def failed(self) -> int:
        return self._writer.failed

    @property
    def acknowledged(self) -> int:
        return self._writer.acknowledged

    # -- records --------------------------------------------------------------------------------

    def handle(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("logd.") or record.name == "logd":
            return False  # a client's own troubles, which must not make more of them
        if record.threadName is not None and record.threadName.startswith("logd-"):
            passed = bool(self.filter(record))
            if passed:
                self._set_aside(record)
            return passed
        return bool(super().handle(record))

    def emit(self, record: logging.LogRecord) -> None:
        if self._writer.is_stuck and not self._aside:
            self._writer.drop()
            return
        thread = threading.get_ident()
        if thread in self._inside:
            self._set_aside(record)
            return
        data = self._bytes_of(record)
        self._inside.add(thread)
        try:
            self._offer_aside()
            self._offer(record, data)
            self._offer_aside()
        finally:
            self._inside.discard(thread)

    def _offer(self, record: logging.LogRecord, data: bytes) -> None:
        try:
            self._writer.offer(data)
        except Exception:  # noqa: BLE001  whatever is wrong, the program goes on
            self._complain(record)

    def _set_aside(self, record: logging.LogRecord) -> None:
        """Past the limit only that there was one."""
        is_kept = len(self._aside) < MAX_ASIDE
        self._aside.append((record, self._bytes_of(record)) if is_kept else None)

    def _offer_aside(self) -> None:
        while self._aside:
            aside = self._aside.popleft()
            if aside is None:
                self._writer.drop()
            else:
                self._offer(*aside)

    # -- bytes ----------------------------------------------------------------------------------

    def _bytes_of(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001  no reason to lose the record
            self._complain(record)
            text = self._rescued(record, error)
        data = to_bytes(text)
        if len(data) > self._max_bytes:
            kept = data[: self._max_bytes - _MARK_BYTES].decode("utf-8", "ignore")
            data = to_bytes(cut_text(text, len(kept)))
        return data

    def _rescued(self, record: logging.LogRecord, error: Exception) -> str:
        """What can be said of a record that cannot be put together."""
        plain = logging.LogRecord(
            record.name, record.levelno, record.pathname, record.lineno,
            f"{text_of(record.msg)} {text_of(record.args)}"
            f" (not formatted: {type(error).__name__}: {text_of(error)})", None, None,
        )  # fmt: skip
        try:
            return self.format(plain)
        except Exception:  # noqa: BLE001  then it is the formatter that is wrong
            return f"{plain.levelname} {plain.name}: {plain.msg}"

    def _report(self, count: int) -> bytes:
        record = logging.LogRecord(
            "logd.handler", logging.WARNING, __file__, 0,
            "%d log records were dropped here: the daemon was away, or too slow", (count,), None,
        )  # fmt: skip
        record.dropped = count
        return self._bytes_of(record)

    def _complain(self, record: logging.LogRecord) -> None:
        self.errors += 1
        try:
            self.handleError(record)
        except RecursionError:
            pass  # the program is too deep even for that, and will say so itself

    # -- the end --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until everything is stored, `close_s` at most."""
        if not self._has_ended:
            self._enter(lambda: self._writer.flush(self._close_s))

    def close(self) -> None:
        """Flush, and end; what then is lost is said on stderr, unless `raiseExceptions` is off."""
        super().close()
        if not self._has_ended:
            self._enter(self._end)

    def _end(self) -> None:
        self._has_ended = True
        missing = self._writer.end(self._close_s)
        if missing and logging.raiseExceptions and sys.stderr is not None:
            text = f"logd: {missing} log records did not get to the topic {self._topic}"
            print(text, file=sys.stderr)

    def _enter(self, work: Callable[[], None]) -> None:
        """Do what may wait in the writer, unless this thread is there already."""
        thread = threading.get_ident()
        if thread in self._inside:
            return
        assert self.lock is not None
        self._inside.add(thread)
        try:
            with self.lock:
                self._offer_aside()
            work()
            with self.lock:
                self._offer_aside()
        finally:
            self._inside.discard(thread)

    def after_fork(self) -> None:
        self.errors = 0
        self._aside.clear()
        self._inside.clear()
        self._spools.own = None
        self._writer.after_fork()


class _Spools:
    """A directory of spools, one for each process at a time; or none."""

    def __init__(
        self, directory: Path | None, make: Callable[[Path | None, OnRefused], Writer]
    ) -> None:
        self._directory, self._make = directory, make
        self.own: Path | None = None  # this process's

    def writer(self, on_refused: OnRefused) -> Writer:
        if self._directory is None or self.own is not None:
            return self._make(self.own, on_refused)
        for number in range(MAX_SPOOLS):
            path = self._directory / str(number)
            try:
                writer = self._make(path, on_refused)
            except SpoolError as error:
                if _TAKEN not in str(error) or number == MAX_SPOOLS - 1:
                    raise
            else:
                self.own = path
                break
        return writer
