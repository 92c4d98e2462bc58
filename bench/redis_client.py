"""Reads and writes with redis-py, in its own process. Arguments: see client_task.

It uses the fastest documented calls: pipelines without a transaction, and `execute_command`
(`xadd` builds the same command more slowly). Each XREAD returns a list of entries. redis-py uses
hiredis, a parser in C, if it is installed; modes without -hiredis measure redis-py alone.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from itertools import islice

if __name__ == "__main__" and not sys.argv[1].endswith("-hiredis"):
    sys.modules["hiredis"] = None  # type: ignore[assignment]  # prevents its use

import redis

from bench.client_task import Task, Way, run

FIELD = b"m"


def connect(task: Task) -> redis.Redis:
    host, port = task.address.split(":")
    client = redis.Redis(host, int(port))
    client.ping()  # connected before the clock starts
    return client


def write(task: Task, pipeline_messages: int) -> float:
    values = task.values()
    with connect(task) as client:
        client.delete(task.topic)
        start = time.perf_counter()
        pipeline = client.pipeline(transaction=False)
        add = pipeline.execute_command
        while piece := list(islice(values, pipeline_messages)):
            for value in piece:
                add("XADD", task.topic, "*", FIELD, value)
            pipeline.execute()  # raises if one of them was refused
        elapsed = time.perf_counter() - start
        task.check_stored(client.xlen(task.topic))
    return elapsed


def read(task: Task, count: int) -> float:
    seen = seen_bytes = 0
    last: bytes | str = "0"
    with connect(task) as client:
        start = time.perf_counter()
        while seen < task.messages:
            reply = client.xread({task.topic: last}, count=count)
            if not reply:
                break
            [(_, entries)] = reply
            for _, fields in entries:
                seen += 1
                seen_bytes += len(fields[FIELD])
            last = entries[-1][0]
        elapsed = time.perf_counter() - start
    task.check_read(seen, seen_bytes)
    return elapsed


MODES: dict[str, dict[str, Way]] = {
    "write": {f"pipelines of {n}": partial(write, pipeline_messages=n) for n in (100, 1000)},
    "fill": {"pipelines of 1000": partial(write, pipeline_messages=1000)},
    "read": {f"XREAD COUNT {n}": partial(read, count=n) for n in (1000, 10000)},
}

if __name__ == "__main__":
    run(MODES | {f"{mode}-hiredis": ways for mode, ways in MODES.items()})
