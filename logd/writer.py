"""The writer: messages one by one in, batches out, several of them on their way at a time.

`write` takes no lock: it appends to a list and adds to a count, and only when the count passes the
limit does it take the lock and `_attend`. A lock per message would halve the rate (measured: 460
instead of 240 ns per message). Why that is safe with threads:

- a list's append, slice and slice deletion are atomic, the list is never replaced, and only the
  holder of the lock takes messages out of it: no message is lost or doubled;
- the count can lose an addition when threads race. Then a batch is a little larger or smaller;
- `_limit` is written by the holder of the lock alone, and is -1 whenever the next write must take
  the lock: nothing is buffered, so that the linger must be started, or the writer has failed.

The first failure is final: it is raised by every later call, with all that was not acknowledged
given up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from time import monotonic
from typing import Self

from logd.batch import encode_body
from logd.client import Client, ConnectionLost, checked_topic, seal
from logd.errors import Internal, LogdError

KEEP_ALIVE_S = 60.0  # well below the daemon's idle timeout

_ATTEND = -1  # a limit that every write exceeds
_PIECE = 64  # messages that write_many looks at together


class Writer:
    """Writes to one topic, from any number of threads. A context manager; `close` flushes.

    A batch goes out when it has `batch_bytes`, or when its oldest message has waited `linger_s`
    (None or 0: only by size and `flush`). A larger message is a batch of its own. A Client that is
    passed in is the writer's alone until it is closed.
    `acknowledged` counts messages; `first_offset` and `next_offset` span them.
    """

    __slots__ = (
        "_append",
        "_batch_bytes",
        "_buffer",
        "_client",
        "_closed",
        "_compress",
        "_failure",
        "_idle",
        "_in_flight",
        "_limit",
        "_linger_s",
        "_lock",
        "_max_in_flight",
        "_oldest_s",
        "_owned",
        "_size",
        "_thread",
        "_topic",
        "_wake",
        "acknowledged",
        "first_offset",
        "next_offset",
    )

    def __init__(
        self,
        target: str | Client,
        topic: str,
        *,
        batch_bytes: int = 64 * 1024,
        linger_s: float | None = 0.01,
        max_in_flight: int = 16,
        compress: bool = False,
    ) -> None:
        if batch_bytes < 1 or max_in_flight < 1:
            raise ValueError("batch_bytes and max_in_flight must be at least 1")
        self._topic = checked_topic(topic)
        self._owned = isinstance(target, str)
        self._client = Client(target) if isinstance(target, str) else target
        self._batch_bytes, self._max_in_flight = batch_bytes, max_in_flight
        self._compress = compress
        self._buffer: list[bytes] = []
        self._append = self._buffer.append
        self._size, self._limit = 0, _ATTEND
        self._oldest_s = 0.0  # when the oldest buffered message came
        self._in_flight: deque[int] = deque()  # messages of each batch that has no reply yet
        self._failure: LogdError | ConnectionLost | None = None
        self._closed = False
        self.acknowledged = 0
        self.first_offset: int | None = None
        self.next_offset: int | None = None
        self._lock = threading.Lock()
        self._linger_s = linger_s or 0.0
        self._wake = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._idle = False  # the thread sleeps until it is woken

    def write(self, message: bytes) -> None:
        """Add one message. It is safe in the log only when `flush` or `close` has returned."""
        if type(message) is not bytes:
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        self._append(message)
        self._size += len(message) + 1
        if self._size > self._limit:
            self._attend()

    def write_many(self, messages: Iterable[bytes]) -> None:
        """The same as `write` for each, at half the cost."""
        rest = iter(messages)
        while piece := list(islice(rest, _PIECE)):
            if set(map(type, piece)) == {bytes}:
                size = sum(map(len, piece)) + len(piece)
                if self._size + size <= self._limit:
                    self._buffer.extend(piece)
                    self._size += size
                    continue
            for message in piece:
                self.write(message)

    def flush(self) -> None:
        """Send what is buffered, and wait until everything is acknowledged."""
        with self._working():
            self._send(self._take(len(self._buffer)))
            while self._in_flight:
                self._collect()

    def close(self) -> None:
        """Flush, and end. After a failure: end, and raise it once more."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            with self._lock:
                self._closed, self._limit = True, _ATTEND
                self._wake.notify()
            if self._thread is not None:
                self._thread.join()
            if self._owned:
                self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except (LogdError, ConnectionLost) as failure:
            if error is None:
                raise
            if error is not failure:
                error.add_note(f"and the writer of {self._topic} failed: {failure}")

    # -- with the lock held ---------------------------------------------------------------------

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Take the lock, and make whatever goes wrong meanwhile the end of this writer."""
        with self._lock:
            self._check()
            try:
                yield
            except (LogdError, ConnectionLost) as error:
                raise self._fail(error) from None
            except BaseException:
                self._fail(ConnectionLost("a batch was interrupted on its way; make a new Writer"))
                raise

    def _check(self) -> None:
        if self._failure is not None:
            self._buffer.clear()
            # Without its old traceback, which would grow with every call that ignores it.
            raise self._failure.with_traceback(None)
        if self._closed:
            self._buffer.clear()
            raise ValueError("this writer is closed")

    def _attend(self) -> None:
        """What a write does that passed the limit."""
        with self._working():
            if self._limit == _ATTEND and self._buffer:
                self._begin()
            if self._buffer and self._size > self._limit:
                alone = len(self._buffer[-1]) >= self._batch_bytes
                self._send(self._take(len(self._buffer) - 1))
                if alone:
                    self._send(self._take(len(self._buffer)))

    def _begin(self) -> None:
        """Messages are buffered, and nobody has counted them or watches their age yet."""
        self._oldest_s = monotonic()
        self._size = sum(map(len, self._buffer)) + len(self._buffer)
        self._limit = self._batch_bytes
        if self._linger_s and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="logd-linger", daemon=True)
            self._thread.start()
        elif self._idle:
            self._wake.notify()

    def _take(self, count: int) -> list[bytes]:
        taken = self._buffer[:count]
        del self._buffer[:count]
        # In this order: a write that still saw the old limit has its message in the buffer by now.
        self._limit = _ATTEND
        if self._buffer:
            self._begin()
        return taken

    def _send(self, messages: list[bytes]) -> None:
        if not messages:
            return
        body, enc = encode_body(messages)
        if len(body) > 2 * self._batch_bytes and len(messages) > 1:
            # Threads wrote large messages at the same moment: none should share a batch.
            half = len(messages) // 2
            self._send(messages[:half])
            self._send(messages[half:])
            return
        self._in_flight.append(len(messages))
        self._client.send_push(seal(self._topic, body, enc, compressed=self._compress))
        while len(self._in_flight) >= self._max_in_flight:
            self._collect()

    def _collect(self) -> None:
        """Take the next reply."""
        messages = self._in_flight.popleft()
        pushed = self._client.receive_pushed()
        if pushed.messages != messages:
            raise Internal(f"{messages} messages were sent and {pushed.messages} acknowledged")
        if self.first_offset is None:
            self.first_offset = pushed.offset
        self.next_offset = pushed.offset + messages
        self.acknowledged += messages

    def _fail(self, error: LogdError | ConnectionLost) -> LogdError | ConnectionLost:
        """End this writer: take the replies still due, so that the connection stays in step."""
        while self._in_flight:
            try:
                self._collect()
            except LogdError as refusal:
                # What the daemon said before it hung up explains more than that it did.
                error = refusal if isinstance(error, ConnectionLost) else error
            except ConnectionLost:
                self._in_flight.clear()
        self._failure, self._limit = error, _ATTEND
        self._buffer.clear()
        return error

    # -- the linger thread: sends what is old, takes replies while nothing else does --------------

    def _run(self) -> None:
        with self._lock:
            while not self._closed:
                pause_s = self._tend()
                self._idle = pause_s is None
                woken = self._wake.wait(KEEP_ALIVE_S if self._idle else pause_s)
                if self._idle and not woken:
                    self._keep_alive()
                self._idle = False

    def _keep_alive(self) -> None:
        """The daemon closes what is idle; a writer behind `tail -f` may have nothing for hours."""
        if self._failure is None:
            try:
                self._client.ping()
            except (LogdError, ConnectionLost) as error:
                self._fail(error)

    def _tend(self) -> float | None:
        """Do what is due; how long until the next look, None for as long as nothing is written."""
        if self._failure is not None:
            return None
        try:
            if self._buffer:
                left_s = self._oldest_s + self._linger_s - monotonic()
                if left_s > 0:
                    return left_s
                self._send(self._take(len(self._buffer)))
            while self._in_flight and self._client.readable():
                self._collect()
        except (LogdError, ConnectionLost) as error:
            self._fail(error)
            return None
        return self._linger_s if self._buffer or self._in_flight else None
