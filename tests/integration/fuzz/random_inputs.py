"""Where the dice come from, how many throws there are, and what they do to bytes.

Everything is drawn from one `Random`, so a seed tells the whole run. `LOGD_SEED` sets it; a long
run (`LOGD_LONG=1`) takes a fresh one. `LOGD_FUZZ_INPUTS` is how many inputs there are of each kind.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import TypeVar

from tests.support.long_run import LONG

SEED = int(os.environ.get("LOGD_SEED") or (secrets.randbits(32) if LONG else 1774))

ODD_NUMBERS = (
    b"0", b"00", b"007", b"1", b"-1", b"+5", b"1_0", b" 7", b"1e3", b"0x10", b"\xd9\xa3", b"",
    b"65535", b"65536", b"65537", b"4294967296", b"1099511627776", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551616", b"9" * 30, b"9" * 1000,
)  # fmt: skip
ODD_BYTES = (
    b"\0", b"\r", b"\n", b"\r\n", b"\n\r", b"\r\r\n", b" ", b"  ", b"\t", b"\x0b", b"\x0c", b"\x1c",
    b"\x85", b"\xff", b"=", b":", b"@", b"-", b"..", b"/", b"%00", b"\x1b[2J", b"\xe2\x80\xa8",
    b"PING\r\n", b"PUSH app\r\nx\r\n", b"BATCH 0 1 2 3 lines ", b"HTTP/1.1",
)  # fmt: skip

T = TypeVar("T")


def how_many(quick: int, long: int) -> int:
    """The inputs of one kind in this run."""
    return int(os.environ.get("LOGD_FUZZ_INPUTS") or (long if LONG else quick))


class Progress:
    """Says now and then how far a run has come: a long one may be cut short."""

    def __init__(self, what: str, inputs: int) -> None:
        self._what, self._began_s, self._step, self._next = what, time.monotonic(), inputs // 10, 0
        print(f"{what}: {inputs} inputs, SEED={SEED}", flush=True)

    def at(self, inputs: int, told: str = "") -> None:
        if inputs >= self._next:
            self._next += self._step or 1
            self.tell(inputs, told)

    def tell(self, inputs: int, told: str) -> None:
        rate = inputs / (time.monotonic() - self._began_s)
        print(f"{self._what}: {inputs} inputs, {rate:.0f}/s{told}", flush=True)


def weighted(random: Random, table: Sequence[tuple[int, T]]) -> T:
    """One of them, each as often as its number says."""
    at = random.randrange(sum(weight for weight, _ in table))
    for weight, item in table:
        at -= weight
        if at < 0:
            return item
    raise AssertionError("the weights do not add up")


def mutated(random: Random, data: bytes) -> bytes:
    """The same with one to three things wrong with it."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at = random.randrange(len(data) + 1)
        to = min(len(data), at + random.choice((1, 1, 2, 4, 20)))
        match random.randrange(9):
            case 0 if at < len(data):
                changed = bytes([data[at] ^ 1 << random.randrange(8)])
                data = data[:at] + changed + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + data[to:]
            case 3:
                data = data[:to] + data[at:]
            case 4:
                data = data[:at] + random.choice(ODD_BYTES) + data[at:]
            case 5:
                data = data[:at] + random.choice(ODD_BYTES) + data[to:]
            case 6:
                data = data[:at] + random.randbytes(random.randrange(1, 9)) + data[to:]
            case 7:
                data = with_another_number(random, data)
            case _:
                data = data[at:]
    return data


def with_another_number(random: Random, data: bytes) -> bytes:
    """One of the numbers in the first line is odd, or off by one."""
    line, end, rest = data.partition(b"\n")
    words = line.split(b" ")
    places = [i for i, word in enumerate(words) if word.strip(b"\r").isdigit()]
    if not places:
        return data
    i = random.choice(places)
    value = int(words[i].strip(b"\r")[:18])
    near = b"%d" % max(0, value + random.choice((-1, 1, 2, 10)))
    words[i] = random.choice((near, random.choice(ODD_NUMBERS)))
    return b" ".join(words) + end + rest


def pieces(random: Random, data: bytes) -> list[bytes]:
    """The same bytes, cut at random places."""
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 2, 7))))
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]
