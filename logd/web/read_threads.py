"""The threads on which HTTP reads are worked on, and who may use them.

They are not those of the disk: however much is searched, writes are not delayed. Plain reads have a
thread of their own, so that searches do not delay them either. Always: a client, that is a token or
an address, uses one search thread at a time and has at most CLIENT_SEARCHES searches open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, TypeVar

from logd.errors import Busy
from logd.storage.disk import refusal
from logd.web.batch_rendering import WalkCache

T = TypeVar("T")
SEARCHES = 64  # open at a time
CLIENT_SEARCHES = 8
_SEARCH_THREADS = 2


class Lane:
    """Some threads, and a queue for them. Who waits in it holds no walk that others could drop."""

    def __init__(self, name: str, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._free = asyncio.Semaphore(threads)

    @asynccontextmanager
    async def turn(self, *others: asyncio.Semaphore) -> AsyncIterator[RunningStep]:
        """A thread, and one of each of `others`, until what `Running` was given to do has ended."""
        running = RunningStep(self._threads)
        async with AsyncExitStack() as taken:
            for semaphore in (*others, self._free):
                await semaphore.acquire()
                taken.callback(running.then, semaphore.release)
            yield running


class RunningStep:
    """At most one call, which goes on when whoever waits for it is cancelled."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._future: asyncio.Future[Any] | None = None

    async def do(self, call: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        self._future = future = loop.run_in_executor(self._threads, call, *arguments)
        try:
            return await asyncio.shield(future)
        except OSError as error:
            raise refusal(error) from None

    def then(self, call: Callable[[], object]) -> None:
        """When the thread is free again."""
        future = self._future
        if future is None or future.done():
            call()
        else:
            future.add_done_callback(lambda done: (done.exception(), call()))


class ReadClient:
    """The searches of one client, which take turns."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(1)
        self.searches = 0


class ReadThreads:
    def __init__(self) -> None:
        self.kept = WalkCache()
        self._reads = Lane("logd-read", 1)
        self._searches = Lane("logd-search", _SEARCH_THREADS)
        self._clients: dict[str, ReadClient] = {}
        self._open = 0

    @contextmanager
    def search(self, name: str) -> Iterator[None]:
        """For as long as a search of the client is open; Busy where there are too many."""
        self._drop_unused()
        client = self._clients.setdefault(name, ReadClient())
        if client.searches >= CLIENT_SEARCHES or self._open >= SEARCHES:
            whose = "you have" if client.searches >= CLIENT_SEARCHES else "the daemon has"
            raise Busy(f"{whose} too many searches open; retry when one of them has ended")
        client.searches, self._open = client.searches + 1, self._open + 1
        try:
            yield
        finally:
            client.searches, self._open = client.searches - 1, self._open - 1

    def turn_to_read(self) -> AbstractAsyncContextManager[RunningStep]:
        return self._reads.turn()

    def turn_to_search(self, name: str) -> AbstractAsyncContextManager[RunningStep]:
        """While it runs, no other search of this client does, even if its own was given up."""
        return self._searches.turn(self._clients[name].free)

    def _drop_unused(self) -> None:
        for name, client in list(self._clients.items()):
            if not client.searches and not client.free.locked():
                del self._clients[name]
