"""Shared by the client programs: their arguments, their messages, and the line that they print.

python -m bench.<program> MODE ADDRESS TOPIC MESSAGES MESSAGE_BYTES SEED

A program has several ways to do the same work. It tries each, checks the number of messages and
bytes, and prints the rate of the fastest one as JSON, with the others as facts.
"""

from __future__ import annotations

import asyncio
import json
import random
import string
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import uvloop

DISTINCT = 1000  # messages that are generated; they are sent repeatedly
WAIT_S = 60.0  # the limit of any wait

Way = Callable[["Task"], float]  # does the work and returns the seconds that it took


@dataclass(frozen=True, slots=True)
class Task:
    mode: str
    address: str
    topic: str
    messages: int  # a multiple of DISTINCT
    message_bytes: int
    seed: int

    @property
    def value_bytes(self) -> int:
        """The length of a message without its LF."""
        return self.message_bytes - 1

    def values(self) -> Iterator[bytes]:
        """All messages. Call this before the clock starts: it generates the distinct ones."""
        letters = string.ascii_letters + string.digits
        chance = random.Random(self.seed)
        block = [
            "".join(chance.choices(letters, k=self.value_bytes)).encode() for _ in range(DISTINCT)
        ]
        return chain.from_iterable(repeat(block, self.messages // DISTINCT))

    def check_stored(self, stored: int) -> None:
        if stored != self.messages:
            raise SystemExit(f"{self.mode}: {stored} messages are stored, not {self.messages}")

    def check_read(self, seen: int, seen_bytes: int) -> None:
        expected = (self.messages, self.messages * self.value_bytes)
        if (seen, seen_bytes) != expected:
            raise SystemExit(f"{self.mode}: read {seen} messages of {seen_bytes} B, not {expected}")


def run(modes: Mapping[str, Mapping[str, Way]]) -> None:
    """Try every way of the mode in the arguments, and print the best rate."""
    mode, address, topic, *numbers = sys.argv[1:]
    task = Task(mode, address, topic, *map(int, numbers))
    rates = {name: task.messages / way(task) for name, way in modes[mode].items()}
    print(json.dumps({"messages": task.messages, "per_second": max(rates.values())} | rates))


def on_uvloop(work: Callable[[Task], Coroutine[Any, Any, float]]) -> Way:
    def way(task: Task) -> float:
        elapsed: float = uvloop.run(work(task))
        return elapsed

    return way


class Acknowledgements:
    """Counts acknowledgements, which may arrive in any order."""

    def __init__(self) -> None:
        self.count = 0
        self.more = asyncio.Event()

    async def reach(self, count: int) -> None:
        while self.count < count:
            self.more.clear()
            await asyncio.wait_for(self.more.wait(), WAIT_S)
