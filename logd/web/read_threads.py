"""The threads that render messages for HTTP reads, and the limits on their use.

They are not the threads of the disk, so searches do not delay writes. Plain reads have their own
thread, so searches do not delay them either. A client, that is a token or an address, uses one
search thread at a time and has at most CLIENT_SEARCHES searches open.
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
from logd.web.batch_rendering import RendererCache

T = TypeVar("T")
SEARCHES = 64  # open at a time
CLIENT_SEARCHES = 8
_SEARCH_THREADS = 2


class ThreadPool:
    """Some threads and a queue for them. A read that waits in it holds no renderer in memory,
    except in the cache."""

    def __init__(self, name: str, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, name)
        self._free = asyncio.Semaphore(threads)

    @asynccontextmanager
    async def reserve(self, *others: asyncio.Semaphore) -> AsyncIterator[ReservedThread]:
        """A thread, and one of each of `others`, until the call on the thread has ended."""
        thread = ReservedThread(self._executor)
        async with AsyncExitStack() as reserved:
            for semaphore in (*others, self._free):
                await semaphore.acquire()
                reserved.callback(thread.call_when_done, semaphore.release)
            yield thread


class ReservedThread:
    """Runs at most one call, which continues if the task that waits for it is cancelled."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._future: asyncio.Future[Any] | None = None

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        self._future = future = loop.run_in_executor(self._executor, call, *arguments)
        try:
            return await asyncio.shield(future)
        except OSError as error:
            raise refusal(error) from None

    def call_when_done(self, call: Callable[[], object]) -> None:
        future = self._future
        if future is None or future.done():
            call()
        else:
            future.add_done_callback(lambda done: (done.exception(), call()))


class SearchClient:
    """The searches of one client, which share one thread."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(1)
        self.searches = 0

    @property
    def is_idle(self) -> bool:
        return not self.searches and not self.free.locked()


class ReadThreads:
    def __init__(self) -> None:
        self.renderers = RendererCache()
        self._reads = ThreadPool("logd-read", 1)
        self._searches = ThreadPool("logd-search", _SEARCH_THREADS)
        self._clients: dict[str, SearchClient] = {}

    @contextmanager
    def search(self, name: str) -> Iterator[None]:
        """Lasts as long as a search of the client; Busy if there are too many."""
        for idle in [name for name, client in self._clients.items() if client.is_idle]:
            del self._clients[idle]
        client = self._clients.setdefault(name, SearchClient())
        is_client_full = client.searches >= CLIENT_SEARCHES
        if is_client_full or sum(one.searches for one in self._clients.values()) >= SEARCHES:
            subject = "you have" if is_client_full else "the daemon has"
            raise Busy(f"{subject} too many open searches; retry when one of them has ended")
        client.searches += 1
        try:
            yield
        finally:
            client.searches -= 1

    def reserve_read(self) -> AbstractAsyncContextManager[ReservedThread]:
        return self._reads.reserve()

    def reserve_search(self, name: str) -> AbstractAsyncContextManager[ReservedThread]:
        """Excludes other searches of the client until the call has ended, even if this search
        was cancelled."""
        return self._searches.reserve(self._clients[name].free)
