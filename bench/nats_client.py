"""Reads and writes with nats-py on JetStream, in its own process. Arguments: see client_task.

`write` and `read` are what its documentation recommends for speed: `publish_async` with many
messages in flight, and `fetch` of many messages from a pull consumer. `write-core` and `read-push`
are the fastest that were found: `publish` with one inbox for all acknowledgements, and an ordered
push consumer with a callback. All run on uvloop, which is faster here than the standard loop.
Consumers do not acknowledge; logd's reader does not either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType
from nats.js.errors import NotFoundError

from bench.client_task import WAIT_S, Acknowledgements, Task, Way, on_uvloop, run

CORE_WINDOW = 4000  # messages without acknowledgement; 1,000 was no quicker


@asynccontextmanager
async def connected(task: Task) -> AsyncIterator[Any]:
    connection = await nats.connect(f"nats://{task.address}", allow_reconnect=False)
    try:
        yield connection
    finally:
        await connection.close()


async def make_stream(stream: Any, task: Task) -> None:
    try:
        await stream.delete_stream(task.topic)
    except NotFoundError:
        pass
    await stream.add_stream(name=task.topic, subjects=[task.topic], storage=StorageType.FILE)


async def check_stored(stream: Any, task: Task) -> None:
    task.check_stored((await stream.stream_info(task.topic)).state.messages)


async def write_async(task: Task, window: int) -> float:
    values = task.values()
    async with connected(task) as connection:
        stream = connection.jetstream(publish_async_max_pending=window, timeout=WAIT_S)
        await make_stream(stream, task)
        start = time.perf_counter()
        for value in values:
            await stream.publish_async(task.topic, value)
        await stream.publish_async_completed()
        elapsed = time.perf_counter() - start
        await check_stored(stream, task)
    return elapsed


class JetStreamAcknowledgements(Acknowledgements):
    async def take(self, message: Any) -> None:
        if b'"error"' in message.data:
            raise SystemExit(f"nats-server refused a message: {message.data!r}")
        self.count += 1
        self.more.set()


async def write_core(task: Task) -> float:
    values = task.values()
    async with connected(task) as connection:
        stream = connection.jetstream(timeout=WAIT_S)
        await make_stream(stream, task)
        acknowledged = JetStreamAcknowledgements()
        inbox = connection.new_inbox()
        await connection.subscribe(inbox, cb=acknowledged.take)
        start = time.perf_counter()
        for sent, value in enumerate(values):
            if sent - acknowledged.count >= CORE_WINDOW:
                await acknowledged.reach(sent - CORE_WINDOW + 1)
            await connection.publish(task.topic, value, reply=inbox)
        await acknowledged.reach(task.messages)
        elapsed = time.perf_counter() - start
        await check_stored(stream, task)
    return elapsed


async def fetch(task: Task, batch: int) -> float:
    seen = seen_bytes = 0
    async with connected(task) as connection:
        stream = connection.jetstream(timeout=WAIT_S)
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        consumer = await stream.pull_subscribe(task.topic, stream=task.topic, config=config)
        start = time.perf_counter()
        while seen < task.messages:
            for message in await consumer.fetch(min(batch, task.messages - seen), timeout=WAIT_S):
                seen += 1
                seen_bytes += len(message.data)
        elapsed = time.perf_counter() - start
    task.check_read(seen, seen_bytes)
    return elapsed


async def read_pushed(task: Task) -> float:
    seen = seen_bytes = 0
    end = asyncio.Event()

    async def take(message: Any) -> None:
        nonlocal seen, seen_bytes
        seen += 1
        seen_bytes += len(message.data)
        if seen == task.messages:
            end.set()

    async with connected(task) as connection:
        stream = connection.jetstream(timeout=WAIT_S)
        start = time.perf_counter()
        await stream.subscribe(task.topic, stream=task.topic, ordered_consumer=True, cb=take)
        await asyncio.wait_for(end.wait(), WAIT_S)
        elapsed = time.perf_counter() - start
    task.check_read(seen, seen_bytes)
    return elapsed


MODES: dict[str, dict[str, Way]] = {
    "write": {f"window {n}": on_uvloop(partial(write_async, window=n)) for n in (500, 4000)},
    "write-core": {f"window {CORE_WINDOW}": on_uvloop(write_core)},
    "read": {f"fetch {n}": on_uvloop(partial(fetch, batch=n)) for n in (1000, 10000)},
    "read-push": {"ordered": on_uvloop(read_pushed)},
}

if __name__ == "__main__":
    run(MODES)
