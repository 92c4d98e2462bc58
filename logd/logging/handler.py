"""A handler for Python's `logging` that never blocks the program and never raises into it.

`emit` formats a record and passes it to a writer that never waits. `logging` calls it with the
handler's lock held; no other lock is held when that one is taken.

A signal handler or a finalizer may log at any time, also while its thread is inside the writer and
holds the writer's lock, and even in the writer's own thread. A second call into the writer would
deadlock, so such a record is set aside, and the next call passes it on.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from logd.client.dropping_writer import DroppingWriter, OnRefused
from logd.client.spool import SpoolInUse
from logd.client.writer import QUEUE_BYTES, SPOOL_BYTES, Writer
from logd.logging import forks
from logd.logging.records import MAX_BYTES, JsonFormatter, cut_text, text_of, to_bytes
from logd.wire.addresses import Target

CLOSE_S = 2.0
MAX_ASIDE = 1000
MAX_SPOOLS = 1000  # processes that share a spool directory
_MARK_BYTES = 100  # the mark of a cut message is shorter


class LogdHandler(logging.Handler):
    """Sends records to a topic: as JSON, or as text with another formatter.

    `fields` are added to every JSON record, and `include` adds attributes of the record: pid,
    process, thread, file, line, function. Messages longer than `max_bytes` are cut. While
    `queue_bytes` are waiting, records are dropped. With a `spool` directory they wait there, up to
    `spool_bytes`, and survive the program; each process uses its own subdirectory. `flush` and
    `close` wait for at most `close_s`, and raise nothing.

    Counters of this process: of the `emitted` records, `sent` were accepted and `dropped` were not;
    `failed` of those sent were refused, or not acknowledged when the handler was closed.
    `acknowledged` messages are stored, including reports of drops. `errors` counts handled errors.
    """

    _has_ended = True  # until `__init__` is done: `logging` also closes a handler that failed there

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
        """Raises if a setting is wrong or the spool cannot be used. Nothing else raises."""
        super().__init__(level)
        # Set here: `basicConfig` gives a text formatter to a handler that has none.
        self.formatter = JsonFormatter(fields, include, max_bytes)
        self.errors = 0
        self._topic, self._max_bytes, self._close_s = topic, max_bytes, close_s
        self._aside: deque[tuple[logging.LogRecord, bytes] | None] = deque()
        self._inside: set[int] = set()  # threads that are inside the writer

        self._spool_dir = Path(spool) if spool else None
        self._own_spool: Path | None = None  # the subdirectory of this process
        self._make_writer = partial(
            Writer, target, topic, full="drop", connect="later", patience_s=math.inf,
            queue_bytes=queue_bytes, spool_bytes=spool_bytes, compress=compress,
            timeout_s=timeout_s,
        )  # fmt: skip
        assert self.lock is not None
        self._writer = DroppingWriter(self.lock, self._open_writer, self._report)
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

    def _open_writer(self, on_refused: OnRefused) -> Writer:
        """With a spool directory: in the first subdirectory that no other process uses."""
        forks.flush_with_worker(self)
        if self._spool_dir is None or self._own_spool is not None:
            return self._make_writer(spool=self._own_spool, on_refused=on_refused)
        for number in range(MAX_SPOOLS):
            path = self._spool_dir / str(number)
            with contextlib.suppress(SpoolInUse):
                writer = self._make_writer(spool=path, on_refused=on_refused)
                self._own_spool = path
                return writer
        raise SpoolInUse(f"{MAX_SPOOLS} processes use the spool {self._spool_dir}")

    # -- records --------------------------------------------------------------------------------

    def handle(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("logd.") or record.name == "logd":
            return False  # the client's own records would cause more of them
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
        except Exception:  # noqa: BLE001  no error may reach the program
            self._handle_error(record)

    def _set_aside(self, record: logging.LogRecord) -> None:
        """Keep the record for the next call; above the limit, only count it."""
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
        except Exception as error:  # noqa: BLE001  the record is kept
            self._handle_error(record)
            text = self._unformatted(record, error)
        data = to_bytes(text)
        if len(data) > self._max_bytes:
            kept = data[: self._max_bytes - _MARK_BYTES].decode("utf-8", "ignore")
            data = to_bytes(cut_text(text, len(kept)))
        return data

    def _unformatted(self, record: logging.LogRecord, error: Exception) -> str:
        """The text of a record that cannot be formatted."""
        plain = logging.LogRecord(
            record.name, record.levelno, record.pathname, record.lineno,
            f"{text_of(record.msg)} {text_of(record.args)}"
            f" (not formatted: {type(error).__name__}: {text_of(error)})", None, None,
        )  # fmt: skip
        try:
            return self.format(plain)
        except Exception:  # noqa: BLE001  the formatter fails on every record
            return f"{plain.levelname} {plain.name}: {plain.msg}"

    def _report(self, count: int) -> bytes:
        record = logging.LogRecord(
            "logd.handler", logging.WARNING, __file__, 0,
            "%d log records were dropped here: the server was down or too slow", (count,), None,
        )  # fmt: skip
        record.dropped = count
        return self._bytes_of(record)

    def _handle_error(self, record: logging.LogRecord) -> None:
        self.errors += 1
        try:
            self.handleError(record)
        except RecursionError:
            pass  # the program raises its own RecursionError

    # -- the end --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until everything is stored, for at most `close_s`."""
        if not self._has_ended:
            self._enter(lambda: self._writer.flush(self._close_s))

    def close(self) -> None:
        """Flush and end; reports lost records on stderr, unless `raiseExceptions` is off."""
        super().close()
        if not self._has_ended:
            self._enter(self._end)

    def _end(self) -> None:
        self._has_ended = True
        missing = self._writer.end(self._close_s)
        if missing and logging.raiseExceptions and sys.stderr is not None:
            text = f"logd: {missing} log records were not stored in topic {self._topic}"
            print(text, file=sys.stderr)

    def _enter(self, work: Callable[[], None]) -> None:
        """Call the writer, unless this thread is already inside it."""
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
        self._own_spool = None
        self._writer.after_fork()
