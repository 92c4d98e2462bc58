"""The Python client at work, in a process of its own: one line of JSON at the end.

python -m bench.python_client writer|reader|batches ADDRESS TOPIC MESSAGES MESSAGE_BYTES SEED
"""

from __future__ import annotations

import json
import random
import string
import sys
import time

from logd import Reader, Writer

DISTINCT = 1000


def messages_of(message_bytes: int, seed: int) -> list[bytes]:
    """Made before the clock starts; one byte short, since a stored line ends in LF."""
    letters = string.ascii_letters + string.digits
    chance = random.Random(seed)
    return ["".join(chance.choices(letters, k=message_bytes - 1)).encode() for _ in range(DISTINCT)]


def write(address: str, topic: str, messages: int, message_bytes: int, seed: int) -> float:
    """One call per message, until the last one is acknowledged."""
    block = messages_of(message_bytes, seed)
    start = time.perf_counter()
    with Writer(address, topic) as writer:
        for _ in range(messages // DISTINCT):
            for message in block:
                writer.write(message)
    return time.perf_counter() - start


def read(address: str, topic: str, messages: int) -> float:
    """Message by message, each checked, split and looked at."""
    start = time.perf_counter()
    seen = value_bytes = 0
    with Reader(address, topic, start="first", limit=messages) as reader:
        for message in reader:
            seen += 1
            value_bytes += len(message.value)
    return _elapsed(start, seen, messages)


def read_batches(address: str, topic: str, messages: int) -> float:
    """The same by whole batches: what an application that works on lists of messages gets."""
    start = time.perf_counter()
    seen = 0
    with Reader(address, topic, start="first", limit=messages) as reader:
        for batch in reader.batches():
            seen += len(batch.messages)
    return _elapsed(start, seen, messages)


def _elapsed(start: float, seen: int, messages: int) -> float:
    elapsed = time.perf_counter() - start
    if seen != messages:
        raise SystemExit(f"read {seen} messages, not {messages}")
    return elapsed


def main() -> None:
    mode, address, topic, *numbers = sys.argv[1:]
    messages, message_bytes, seed = map(int, numbers)
    if mode == "writer":
        seconds = write(address, topic, messages, message_bytes, seed)
    elif mode == "reader":
        seconds = read(address, topic, messages)
    else:
        seconds = read_batches(address, topic, messages)
    print(json.dumps({"messages": messages, "seconds": seconds, "per_second": messages / seconds}))


if __name__ == "__main__":
    main()
