"""Reads and writes with rstream, RabbitMQ's stream client. Arguments: see client_task.

It writes with `send_batch`, the faster of the two documented calls, and counts confirmations. It
reads with a callback per message, as bytes. It runs on uvloop, like nats_client.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import islice
from typing import Any

import rstream

from bench.client_task import WAIT_S, Acknowledgements, Task, Way, on_uvloop, run

WINDOW = 20  # batches that may be unconfirmed
CREDIT = 100  # chunks that the server may send ahead


class Confirmations(Acknowledgements):
    async def take(self, status: Any) -> None:
        if not status.is_confirmed:
            raise SystemExit(f"RabbitMQ refused a message: {status}")
        self.count += 1
        self.more.set()


def connection(task: Task) -> dict[str, Any]:
    host, port = task.address.split(":")
    return {"host": host, "port": int(port), "username": "guest", "password": "guest"}


async def write(task: Task, batch_messages: int) -> float:
    values, confirmed, sent = task.values(), Confirmations(), 0
    async with rstream.Producer(**connection(task)) as producer:
        if await producer.stream_exists(task.topic):
            await producer.delete_stream(task.topic)
        await producer.create_stream(task.topic)
        start = time.perf_counter()
        while batch := list(islice(values, batch_messages)):
            await confirmed.reach(sent - WINDOW * batch_messages)
            await producer.send_batch(task.topic, batch, on_publish_confirm=confirmed.take)
            sent += len(batch)
        await confirmed.reach(task.messages)
        elapsed = time.perf_counter() - start
    task.check_stored(confirmed.count)
    return elapsed


async def read(task: Task) -> float:
    seen = seen_bytes = 0
    end = asyncio.Event()

    async def take(message: Any, context: Any) -> None:
        nonlocal seen, seen_bytes
        seen += 1
        seen_bytes += len(message)
        if seen == task.messages:
            end.set()

    consumer = rstream.Consumer(**connection(task))
    await consumer.start()
    start = time.perf_counter()
    await consumer.subscribe(
        task.topic,
        take,
        decoder=bytes,
        offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST),
        initial_credit=CREDIT,
    )
    await asyncio.wait_for(end.wait(), WAIT_S)
    elapsed = time.perf_counter() - start
    await consumer.close()
    task.check_read(seen, seen_bytes)
    return elapsed


MODES: dict[str, dict[str, Way]] = {
    "write": {f"batches of {n}": on_uvloop(partial(write, batch_messages=n)) for n in (100, 1000)},
    "fill": {"batches of 1000": on_uvloop(partial(write, batch_messages=1000))},
    "read": {"callback": on_uvloop(read)},
}

if __name__ == "__main__":
    run(MODES)
