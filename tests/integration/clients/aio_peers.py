"""A daemon in memory that can be told to answer wrongly, in threads of the test's own process."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import IO

from logd.batch import body_sum, encode_body, encode_header, split_body
from tests.support.listener import Listener

UNKNOWN = b"ERR unknown-command no command 'FOLLOW'; HELP lists them\r\n"
HANG_UP = b"hang up"  # instead of an answer
LOSE = b"lose"  # do it, and hang up before the answer


class Fake(Listener):
    """A daemon with one topic, `app`, in memory.

    `wrong` is a list of (verb, answer): the next command with that verb gets that answer. `lines`
    has every command line that came. Change `id`, `epoch` and `began` at will. A stream has one
    batch in each reply; with `heartbeat_s`, it has heartbeats.
    """

    def __init__(self, *messages: list[bytes], wrong: list[tuple[bytes, bytes]] | None = None):
        self.wrong = wrong or []
        self.lines: list[bytes] = []
        self.first = self.next = 0
        self.id, self.epoch, self.began = "0123456789abcdef", 1, 0
        self.cursors: dict[bytes, int] = {}
        self.batches: list[tuple[int, int, bytes]] = []  # offset, messages, bytes
        self.ids: dict[tuple[bytes, int], tuple[bytes, bytes]] = {}  # the body, and its answer
        self.last: dict[bytes, int] = {}
        self.is_there = bool(messages)
        self.grown = threading.Condition()
        self._one_push = threading.Lock()  # a connection that was given up may still be read from
        self.is_ending = False
        self.heartbeat_s: float | None = None
        self.heartbeats = 0
        self.streams: set[socket.socket] = set()
        self.disturbances: list[bytes] = []  # commands during a stream, which no client sends
        self.greeting = b""
        for one in messages:
            self.store(one)
        super().__init__()

    def __exit__(self, *_: object) -> None:
        with self.grown:
            self.is_ending = True
            self.grown.notify_all()
        super().__exit__()
        assert self.disturbances == []

    def store(self, messages: list[bytes]) -> bytes:
        body, enc = encode_body(messages)
        return self.store_body(body, enc, len(messages))

    def store_body(self, body: bytes, enc: str, count: int) -> bytes:
        head = encode_header(self.next, count, len(body), 1000 + self.next, enc, body_sum(body))
        with self.grown:
            self.batches.append((self.next, count, head + body))
            self.is_there = True
            self.next += count
            self.grown.notify_all()
        return b"OK %d %d\r\n" % (self.next - count, count)

    @property
    def messages(self) -> list[bytes]:
        found = []
        for _, _, data in self.batches:
            head, _, body = data.partition(b"\r\n")
            found += split_body(body, head.split(b" ")[5].decode())
        return found

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as commands:
            connection.sendall(self.greeting)
            try:
                while line := commands.readline():
                    if connection in self.streams:
                        self.disturbances.append(line)
                    self.lines.append(line)
                    answer = self._answer(line.split(), commands)
                    if answer == HANG_UP:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    connection.sendall(answer)
                    if answer == UNKNOWN:
                        return
                    if answer == b"":
                        self._start_stream(connection, line.split()[2])
            finally:
                self.end_streams(connection)

    def _answer(self, words: list[bytes], commands: IO[bytes]) -> bytes:
        body = commands.read(int(words[2])) if words[0] == b"PUSH" else b""
        wrong = b""
        if self.wrong and self.wrong[0][0] == words[0]:
            wrong = self.wrong.pop(0)[1]
        if wrong and wrong != LOSE:
            return wrong
        answer: bytes = getattr(self, f"_{words[0].decode().lower()}")(words, body)
        return HANG_UP if wrong else answer

    def _ping(self, words: list[bytes], body: bytes) -> bytes:
        return b"OK\r\n"

    def _stats(self, words: list[bytes], body: bytes) -> bytes:
        if not self.is_there:
            return b"ERR not-found no topic app\r\n"
        return text(f"id: {self.id}\nepoch: {self.epoch}\nepoch_began: {self.began}\n")

    def _push(self, words: list[bytes], body: bytes) -> bytes:
        options = dict(word.split(b"=", 1) for word in words[3:])
        producer, _, n = options.get(b"id", b"-:0").partition(b":")
        enc = options.get(b"enc", b"lines").decode()
        with self._one_push:
            known, last = self.ids.get((producer, int(n))), self.last.get(producer, int(n) - 1)
            if known is None:
                if int(n) != last + 1:
                    return b"ERR out-of-order last=%d\r\n" % last
                known = body, self.store_body(body, enc, len(split_body(body, enc)))
                if producer != b"-":
                    self.ids[producer, int(n)], self.last[producer] = known, int(n)
            elif known[0] != body:
                return b"ERR conflict %s is already stored with another body\r\n" % options[b"id"]
            return known[1]

    def forget_topic(self) -> None:
        """Delete the topic. The next push creates it with another id."""
        with self._one_push, self.grown:
            self.batches.clear()
            self.ids.clear()
            self.last.clear()
            self.first = self.next = self.began = 0
            self.id, self.epoch, self.is_there = f"{int(self.id, 16) + 1:016x}", 1, False

    def _read(self, words: list[bytes], body: bytes) -> bytes:
        if not self.is_there:
            return b"ERR not-found no topic app\r\n"
        places = {b"first": self.first, b"next": self.next}
        start = places[words[2]] if words[2] in places else int(words[2])
        if not self.first <= start <= self.next:
            return b"ERR out-of-range first=%d next=%d\r\n" % (self.first, self.next)
        wait = re.search(rb"wait=(\d+)", words[-1])
        with self.grown:
            wait_s = int(wait[1]) / 1000 if wait else 0
            self.grown.wait_for(lambda: self.next > start or self.is_ending, wait_s)
            end = start + int(words[3])
            found = [b for b in self.batches if b[0] + b[1] > start and b[0] < end][:2]
        last = sum(found[-1][:2]) if found else start
        data = b"".join(data for _, _, data in found)
        return b"BATCHES %d %d %d\r\n%s" % (start, last - start, len(data), data)

    def _tail(self, words: list[bytes], body: bytes) -> bytes:
        start = max(self.first, self.next - int(words[2]))
        return self._read([b"READ", b"app", b"%d" % start, b"%d" % self.next], b"")

    def _follow(self, words: list[bytes], body: bytes) -> bytes:
        """Nothing if the stream can begin."""
        answer = self._read([b"READ", b"app", words[2], b"1"], b"")
        return answer if answer.startswith(b"ERR ") else b""

    def _start_stream(self, connection: socket.socket, where: bytes) -> None:
        at = {b"first": self.first, b"next": self.next}.get(where)
        with self.grown:
            self.streams.add(connection)
            self.grown.notify_all()
        self._start(self._stream, connection, int(where) if at is None else at)

    def end_streams(self, *connections: socket.socket) -> None:
        """Those of these connections, or all, as a daemon that shuts down does."""
        with self.grown:
            self.streams -= {*connections} if connections else {*self.streams}
            self.grown.notify_all()

    def _stream(self, connection: socket.socket, at: int) -> None:
        def has_news() -> bool:
            return self.next > at or self.is_ending or connection not in self.streams

        with suppress(OSError):
            while True:
                with self.grown:
                    is_late = not self.grown.wait_for(has_news, self.heartbeat_s)
                    if self.is_ending or connection not in self.streams:
                        break
                    if is_late:
                        self.heartbeats += 1
                        self.grown.notify_all()
                    answer = self._read([b"READ", b"app", b"%d" % at, b"1"], b"")
                if answer.startswith(b"ERR "):
                    self.end_streams(connection)
                    connection.sendall(answer)
                    return
                connection.sendall(answer)
                at += int(answer.split()[2])
            connection.sendall(b"END %d\r\n" % at)

    def _cursor(self, words: list[bytes], body: bytes) -> bytes:
        if words[2] not in self.cursors:
            return b"ERR not-found no such cursor\r\n"
        return b"OK %d 0\r\n" % self.cursors[words[2]]

    def _commit(self, words: list[bytes], body: bytes) -> bytes:
        with self.grown:
            self.cursors[words[2]] = int(words[3])
            self.grown.notify_all()
        return b"OK %d 0\r\n" % int(words[3])


def text(body: str) -> bytes:
    return b"TEXT %d\r\n%s" % (len(body), body.encode())
