"""The scheduler that storage and the service use: the event loop and its thread pools.

There is one pool for the disk, one for delete hooks, which may run for minutes, and one for work
that needs the CPU.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from logd.storage.scheduler import Done, Timer

log = logging.getLogger("logd")
_DISK_THREADS = 8
_HOOK_THREADS = 16  # one hook per topic at a time
_CPU_THREADS = 2  # more would only compete for the interpreter lock


class LoopScheduler:
    """The event loop and thread pools behind the interface that storage uses."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.monotonic_s = time.monotonic
        self.soon: Callable[[Callable[[], None]], Any] = loop.call_soon
        self.later: Callable[[float, Callable[[], None]], Timer] = loop.call_later
        self.offload = partial(self._run, ThreadPoolExecutor(_DISK_THREADS, "logd-disk"))
        self.offload_hook = partial(self._run, ThreadPoolExecutor(_HOOK_THREADS, "logd-hook"))
        self.offload_cpu = partial(self._run, ThreadPoolExecutor(_CPU_THREADS, "logd-cpu"))

    def _run(self, threads: ThreadPoolExecutor, work: Callable[[], Any], done: Done) -> None:
        def finished(future: Future[Any]) -> None:
            self._loop.call_soon_threadsafe(deliver, future)

        def deliver(future: Future[Any]) -> None:
            error = future.exception()
            done(None if error else future.result(), error)

        threads.submit(work).add_done_callback(finished)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def fatal(self, reason: str) -> None:
        """Exit at once: nothing may be acknowledged any more, not even by a reply that is ready."""
        log.critical("stopping at once: %s", reason)
        logging.shutdown()
        os._exit(1)
