"""A small daemon in a thread, on a real socket, that can be told to misbehave.

It has the true rules for ids (`storage.producers`) and the true parser, keeps everything in memory,
and answers PUSH, STATS and PING. `script` is asked before each push is carried out: it may return
an error to refuse it with, or one of the words below, or None for business as usual.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from logd.batch import body_sum, split_body
from logd.errors import LogdError, NotFound
from logd.protocol import Budget, Parser
from logd.storage.producers import Producers, StoredId
from logd.wire.requests import Ping, Push, RefusedRequest, Request, Stats

HANG_UP = "hang up"  # before it is stored
STALL = "stall"  # until `go_on`, and say nothing
Answer = LogdError | str | None
Script = Callable[[int, Push], Answer]  # the number of the push, from 0, retries counted


class Hung(Exception):
    """This connection is over."""


class FakeDaemon:
    def __init__(self, *, max_batch_bytes: int = 8 << 20) -> None:
        self.script: Script = lambda number, push: None
        self.pushes: list[Push] = []  # all that came in, retries too
        self.stored: list[tuple[Push, list[bytes]]] = []
        self.next = 0
        self.connections = 0
        self._max_batch_bytes = max_batch_bytes
        self._producers = Producers()
        self._changed = threading.Condition()
        self._held = False
        self._socket: socket.socket | None = None
        self._place: socket.socket | None = None  # keeps the port while nobody listens
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self.address = ""

    # -- its life -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen; after a `stop`, at the same address."""
        if self._place is None:
            self._place = socket.socket()
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind(("127.0.0.1", 0))
        self._socket = socket.create_server(self._place.getsockname())
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._spawn(self._accept, self._socket)
        return self

    def stop(self) -> None:
        """Close everything at once, as a killed process does. What is stored stays."""
        self.go_on()
        listening, self._socket = self._socket, None
        if listening is not None:
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        self._threads.clear()

    def cut(self) -> None:
        """End all connections."""
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._place is not None:
            self._place.close()
            self._place = None

    def _spawn(self, work: Callable[[socket.socket], None], connection: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(connection,), daemon=True)
        self._threads.append(thread)
        thread.start()

    # -- what a test asks and tells -------------------------------------------------------------

    @property
    def messages(self) -> list[bytes]:
        return [message for _, batch in self.stored for message in batch]

    @property
    def batches(self) -> list[list[bytes]]:
        return [batch for _, batch in self.stored]

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Until something is so; it is looked at whenever something happens here."""
        with self._changed:
            assert self._changed.wait_for(is_so, 20), "it never was so"

    def hold(self) -> None:
        """Carry out and answer nothing until `go_on`."""
        self._held = True

    def go_on(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    # -- connections ----------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self._open.add(connection)
            with self._changed:
                self.connections += 1
                self._changed.notify_all()
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        parser = Parser(self._max_batch_bytes, Budget(1 << 30))
        try:
            while data := connection.recv(1 << 20):
                for request in parser.feed(data):
                    connection.sendall(self._answer(request))
                if parser.closed:
                    connection.shutdown(socket.SHUT_WR)
                    _drain(connection)
                    return
        except (Hung, OSError):
            pass
        finally:
            self._open.discard(connection)
            connection.close()

    def _answer(self, request: Request) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: not self._held, 60)
            try:
                return self._carried_out(request)
            except LogdError as error:
                return error.line()
            finally:
                self._changed.notify_all()

    def _carried_out(self, request: Request) -> bytes:
        match request:
            case Push():
                return self._push(request)
            case Stats():
                return self._stats()
            case Ping():
                return b"OK\r\n"
            case RefusedRequest(error):
                raise error
        raise NotFound("not in this daemon")

    def _stats(self) -> bytes:
        if not self.stored:
            raise NotFound("no such topic")
        return b"TEXT 34\r\nid: first\nepoch: 1\nepoch_began: 0\n"

    def _push(self, push: Push) -> bytes:
        number = len(self.pushes)
        self.pushes.append(push)
        told = self.script(number, push)
        if isinstance(told, LogdError):
            raise told
        if told == HANG_UP:
            raise Hung
        if told == STALL:
            self._held = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._held, 60)
            raise Hung
        place = self._store(push)
        return b"OK %d %d\r\n" % place

    def _store(self, push: Push) -> StoredId:
        messages = split_body(bytes(push.body), push.enc)
        assert push.sum == body_sum(push.body)
        assert push.messages == len(messages)
        known = self._producers.stored(push.id, push.sum)
        if known is not None:
            return known
        place = StoredId(self.next, len(messages))
        self._producers.stage(push.id, place, push.sum)
        self._producers.commit()
        self.stored.append((push._replace(body=bytes(push.body)), messages))
        self.next += len(messages)
        return place


def _drain(connection: socket.socket) -> None:
    """Swallow what still comes, for a moment, so that what was said arrives."""
    connection.settimeout(1)
    while connection.recv(1 << 20):
        pass


@contextmanager
def deaf() -> Iterator[str]:
    """The address of somebody who takes connections and says nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
