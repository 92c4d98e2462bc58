"""What the client programs share: their arguments, their messages, and the line they end with.

python -m bench.<program> MODE ADDRESS TOPIC MESSAGES MESSAGE_BYTES SEED

A program tries each of its ways to do the same work, checks each against the count and the bytes
that must come of it, and says the rate of the best one, with all the others as facts.
"""

from __future__ import annotations

import json
import random
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat

DISTINCT = 1000  # messages that are made; they are sent over and over

Way = Callable[["Task"], float]  # does the work, returns the seconds it took


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
        """Of one message: one byte short, since a stored line ends in LF."""
        return self.message_bytes - 1

    def values(self) -> Iterator[bytes]:
        """Every message in turn; call it before the clock starts, for the first ones are made."""
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


def task_from_arguments() -> Task:
    mode, address, topic, *numbers = sys.argv[1:]
    return Task(mode, address, topic, *map(int, numbers))


def run(task: Task, ways: Mapping[str, Way]) -> None:
    """Try every way, and print the best rate."""
    rates = {name: task.messages / way(task) for name, way in ways.items()}
    print(json.dumps({"messages": task.messages, "per_second": max(rates.values())} | rates))


def sizes(values: Iterable[bytes]) -> int:
    return sum(map(len, values))
