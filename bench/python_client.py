"""Reads and writes with logd's Python client, in its own process. Arguments: see client_task."""

from __future__ import annotations

import time

from bench.client_task import Task, Way, run
from logd import Client, Endpoint, Reader, Writer
from logd.wire.addresses import Target


def target(task: Task) -> Target:
    """After @ comes the directory of the certificates and the token, see tls_rows."""
    address, at, secrets = task.address.partition("@")
    if not at:
        return address
    return Endpoint(address, token_file=f"{secrets}/token", ca=f"{secrets}/ca.pem")


def write(task: Task) -> float:
    """One call per message, until the last one is acknowledged."""
    values = task.values()
    start = time.perf_counter()
    with Writer(target(task), task.topic) as writer:
        for value in values:
            writer.write(value)
    elapsed = time.perf_counter() - start
    with Client(target(task)) as client:
        task.check_stored(int(client.stats(task.topic)["next"]))
    return elapsed


def read(task: Task) -> float:
    """Message by message, each checked and split; in mode `batches`, in lists of messages."""
    start = time.perf_counter()
    seen = seen_bytes = 0
    with Reader(target(task), task.topic, start="first", limit=task.messages) as reader:
        if task.mode == "batches":
            for batch in reader.batches():
                seen += len(batch.messages)
                seen_bytes += sum(map(len, batch.messages))
        else:
            for message in reader:
                seen += 1
                seen_bytes += len(message.value)
    elapsed = time.perf_counter() - start
    task.check_read(seen, seen_bytes)
    return elapsed


MODES: dict[str, dict[str, Way]] = {
    "write": {"write": write},
    "read": {"read": read},
    "batches": {"batches": read},
}

if __name__ == "__main__":
    run(MODES)
