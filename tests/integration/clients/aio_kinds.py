"""One way to drive the blocking and the asyncio clients, so that a scenario is written once.

    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(address)) as client:
            assert await value(client.ping()) is None

    run(kind, scenario)

Under asyncio and uvloop `run` also fails where a task is left behind, or where the loop had
something to complain about: an exception that nobody looked at, a callback that raised.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import pytest
import uvloop

import logd
from logd import aio

HANG_S = 60.0  # only ever reached by something that would wait for ever

T = TypeVar("T")


class Kind(NamedTuple):
    name: str
    new_loop: Callable[[], asyncio.AbstractEventLoop]
    Client: Any
    Writer: Any
    Reader: Any


BLOCKING = Kind("blocking", asyncio.new_event_loop, logd.Client, logd.Writer, logd.Reader)
ASYNCIO = Kind("asyncio", asyncio.new_event_loop, aio.Client, aio.Writer, aio.Reader)
UVLOOP = Kind("uvloop", uvloop.new_event_loop, aio.Client, aio.Writer, aio.Reader)

on_each = pytest.mark.parametrize("kind", [BLOCKING, ASYNCIO, UVLOOP], ids=lambda kind: kind.name)
on_one = pytest.mark.parametrize("kind", [UVLOOP], ids=lambda kind: kind.name)  # of generated code
on_loops = pytest.mark.parametrize("kind", [ASYNCIO, UVLOOP], ids=lambda kind: kind.name)


def run(kind: Kind, scenario: Callable[[Kind], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=kind.new_loop) as runner:
        return runner.run(_watched(kind, scenario))


async def _watched(kind: Kind, scenario: Callable[[Kind], Coroutine[Any, Any, T]]) -> T:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    async with asyncio.timeout(HANG_S):
        result = await scenario(kind)
    gc.collect()
    for _ in range(3):
        await asyncio.sleep(0)  # what was told to end has a turn to do it
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert complaints == []
    return result


@asynccontextmanager
async def opened(made: Any) -> AsyncIterator[Any]:
    """Of a client, writer or reader of either kind."""
    if hasattr(made, "__aenter__"):
        async with made as entered:
            yield entered
    else:
        with made as entered:
            yield entered


async def value(result: Any) -> Any:
    """What a method returned, of either kind. Futures of threads are waited for too."""
    if inspect.isawaitable(result):
        return await result
    return result.result(HANG_S) if hasattr(result, "result") else result


def started(kind: Kind, call: Callable[[], Any]) -> asyncio.Task[Any]:
    """Make a call that may wait, beside the scenario: in a task, or in a thread."""

    async def in_task() -> Any:
        return await value(call())

    def in_thread() -> Any:
        result = call()
        return result.result(HANG_S) if hasattr(result, "result") else result

    if kind.name == "blocking":
        return asyncio.create_task(asyncio.to_thread(in_thread))
    return asyncio.create_task(in_task())


async def each(items: Any) -> AsyncIterator[Any]:
    """What a reader or its batches give, of either kind."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
