"""Standard output of a read with a cursor: determines which messages have been consumed.

A message is consumed when its last byte has been read from the pipe or the socket; bytes in the
kernel's buffer are not consumed. For a pipe, the kernel reports the number of unread bytes, even
after the other end was closed. For a socket, it reports an upper bound, and nothing after the other
end was closed: then the last known value is used. In both cases a message may be delivered twice,
but none is skipped. Bytes written to a file or a terminal are consumed immediately.

Programs such as `head` read a block and use only a part of it. Therefore the first messages are
written to a pipe one at a time, each after the previous one was read.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import termios
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cli.output.message_formats import Render
from logd.wire.read_state import Batch

ONE_AT_A_TIME = 1000  # messages; takes about 0.1 s longer than blocks
_BLOCK_BYTES = select.PIPE_BUF  # a writable pipe accepts this much without blocking
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 50e-6, 0.05
_HUNG_UP = select.POLLERR | select.POLLHUP

Meanwhile = Callable[[], object]


class CountedOutput:
    """A file descriptor; counts the bytes written to it and read from its other end."""

    def __init__(self, fd: int) -> None:
        mode = os.fstat(fd).st_mode
        self._fd = fd
        self.is_pipe, self._is_socket = stat.S_ISFIFO(mode), stat.S_ISSOCK(mode)
        self._sizes: list[int] = [0]  # of all earlier writes together, and of the last one
        self._read_bytes = 0

    @property
    def written_bytes(self) -> int:
        return sum(self._sizes)

    def write(self, data: bytes, meanwhile: Meanwhile) -> None:
        """Write everything. If a signal interrupts it, the bytes written so far are counted."""
        rest = memoryview(data)
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while rest:
            if not poll.poll(1000):
                meanwhile()
                continue
            try:
                # One step of the interpreter: no signal handler runs between write and count.
                self._sizes += map(os.write, (self._fd,), (rest[:_BLOCK_BYTES],))
            except BlockingIOError:  # another process writes to the same pipe
                continue
            rest = rest[self._sizes[-1] :]
            self._sizes[:] = [sum(self._sizes)]

    def read_bytes(self) -> int:
        """The number of written bytes that have been read from the other end."""
        read = self.written_bytes - self._unread_bytes()
        if not (self._is_socket and self._is_closed()):  # a closed socket discards unread bytes
            self._read_bytes = max(self._read_bytes, read)
        return self._read_bytes

    def wait_until_read(self, meanwhile: Meanwhile) -> None:
        """BrokenPipeError if the other end is closed before everything was read."""
        pause_s = _FIRST_PAUSE_S
        while self.read_bytes() < self.written_bytes:
            if self._is_closed():
                raise BrokenPipeError
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            meanwhile()

    def _unread_bytes(self) -> int:
        if not self.is_pipe and not self._is_socket:
            return 0
        size = array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD if self.is_pipe else termios.TIOCOUTQ, size)
        return size[0]

    def _is_closed(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, 0)
        return any(events & _HUNG_UP for _, events in poll.poll(0))


class _Written(NamedTuple):
    batch: Batch
    start: int  # position in all written bytes
    end: int


class ConsumedMessages:
    """Writes batches and determines which of their messages have been read.

    `meanwhile` is called while it waits for the program that reads the output.
    """

    def __init__(self, fd: int, render: Render) -> None:
        self._out, self._render = CountedOutput(fd), render
        self._unread: deque[_Written] = deque()  # at most the content of a pipe, and the last batch
        self._next: int | None = None
        self._single = ONE_AT_A_TIME if self._out.is_pipe else 0

    def write(self, batch: Batch, meanwhile: Meanwhile) -> None:
        single = min(self._single, len(batch.messages))
        for i in range(single):
            self._out.wait_until_read(meanwhile)
            self._write(_part(batch, i, i + 1), meanwhile)
            self._single -= 1
        if single < len(batch.messages):
            self._write(_part(batch, single, len(batch.messages)), meanwhile)

    def finish(self, meanwhile: Meanwhile) -> None:
        """Wait until everything was read: unread bytes in a pipe may be discarded."""
        self._out.wait_until_read(meanwhile)

    def next_offset(self) -> int | None:
        """The offset after the last message that was read; None if no message was read."""
        read = self._out.read_bytes()
        self._forget(read)
        if self._unread:
            self._next_within(self._unread[0], read)
        return self._next

    def _write(self, batch: Batch, meanwhile: Meanwhile) -> None:
        self._forget(self._out.read_bytes())
        data, start = self._render(batch), self._out.written_bytes
        self._unread.append(_Written(batch, start, start + len(data)))
        self._out.write(data, meanwhile)

    def _forget(self, read: int) -> None:
        while self._unread and self._unread[0].end <= read:
            self._next = self._unread.popleft().batch.next

    def _next_within(self, written: _Written, read: int) -> None:
        """A part of this batch may have been read: keep only the rest."""
        batch, start, end = written
        for i in range(len(batch.messages)):
            after = start + len(self._render(_part(batch, i, i + 1)))
            if after > read:
                break
            self._next, start = batch.offset + i + 1, after
        else:
            i = len(batch.messages)
        self._unread[0] = _Written(_part(batch, i, len(batch.messages)), start, end)


def _part(batch: Batch, start: int, end: int) -> Batch:
    if end - start == len(batch.messages):
        return batch
    return Batch(batch.offset + start, batch.time_ms, batch.messages[start:end])
