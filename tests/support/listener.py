"""A listening socket with a thread for each connection, so that blocking clients can use it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self


class Listener:
    """Gives each connection a thread; ends all of them when it is closed."""

    def __init__(self, family: socket.AddressFamily = socket.AF_INET) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), family=family)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._lock = threading.Lock()
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()

    def cut(self) -> None:
        """End all open connections."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                self._keep(connection)
                self._start(self._serve_and_close, connection)

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.append(connection)

    def _start(self, call: Callable[..., None], *words: object) -> None:
        thread = threading.Thread(target=call, args=words)
        self._threads.append(thread)
        thread.start()

    def _serve_and_close(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        raise NotImplementedError


@contextmanager
def nobody() -> Iterator[str]:
    """An address at which no process listens, and none will while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
