"""Ways to break the small log, each with the offsets that are lost by it.

Its partitions start at offsets 0, 44 and 58; the index of the first lists the batches at 0, 22 and
37. A test hands one of these to its driver.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.integration.storage.small_log import State
from tests.support.byte_sweep import flip

Offsets = tuple[int, int]
Break = Callable[[Path, State], None]
Lost = Callable[[State], list[Offsets]]


def log(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}.log"


def remove(*firsts: int) -> Break:
    def corrupt(directory: Path, state: State) -> None:
        for first in firsts:
            log(directory, first).unlink()

    return corrupt


def rename(first: int, to: int) -> Break:
    def corrupt(directory: Path, state: State) -> None:
        log(directory, first).rename(log(directory, to))

    return corrupt


def swap(one: int, other: int) -> Break:
    def corrupt(directory: Path, state: State) -> None:
        aside = directory / "aside"
        log(directory, one).rename(aside)
        log(directory, other).rename(log(directory, one))
        aside.rename(log(directory, other))

    return corrupt


def cut(part: int, batch: int, into: int = 0) -> Break:
    """The file ends where a batch begins, or so many bytes into it."""

    def corrupt(directory: Path, state: State) -> None:
        place = state.parts[part].batches[batch].position + into
        path = directory / state.parts[part].name
        path.write_bytes(path.read_bytes()[:place])

    return corrupt


def flip_header(part: int, batch: int) -> Break:
    """One bit of a batch's header."""

    def corrupt(directory: Path, state: State) -> None:
        place = state.parts[part].batches[batch].position + 8
        path = directory / state.parts[part].name
        path.write_bytes(flip(path.read_bytes(), place))

    return corrupt


def flip_body(part: int, batch: int) -> Break:
    def corrupt(directory: Path, state: State) -> None:
        place = state.parts[part].batches[batch].end - 2
        path = directory / state.parts[part].name
        path.write_bytes(flip(path.read_bytes(), place))

    return corrupt


def overwrite(first: int, content: bytes) -> Break:
    """The whole file is something else."""

    def corrupt(directory: Path, state: State) -> None:
        log(directory, first).write_bytes(content)

    return corrupt


def write(name: str, content: bytes) -> Break:
    def corrupt(directory: Path, state: State) -> None:
        (directory / name).write_bytes(content)

    return corrupt


def both(*breaks: Break) -> Break:
    def corrupt(directory: Path, state: State) -> None:
        for one in breaks:
            one(directory, state)

    return corrupt


def offsets(*lost: Offsets) -> Lost:
    return lambda state: list(lost)


def from_on(first: int) -> Lost:
    """From here to where the checkpoint says the log goes."""
    return lambda state: [(first, state.checkpoint.next)]


def up_to_listed(first: int) -> Lost:
    """From here to the next batch of the newest partition that the index lists, or as above."""

    def lost(state: State) -> list[Offsets]:
        listed = [batch.first for batch in state.listed(state.active) if batch.first > first]
        return [(first, (listed or [state.checkpoint.next])[0])]

    return lost


class Corruption(NamedTuple):
    name: str
    corrupt: Break
    lost: Lost  # what a check must name
    seen_at_start: bool = True

    def __repr__(self) -> str:
        return self.name


GARBAGE = random.Random(1).randbytes(3000)

# Lost as a whole, or out of place.
MISPLACED = [
    Corruption("the first file is missing", remove(0), offsets((0, 44))),
    Corruption("the middle file is missing", remove(44), offsets((44, 58))),
    Corruption("the newest file is missing", remove(58), from_on(58)),
    Corruption("the two newest files are missing", remove(44, 58), from_on(44)),
    Corruption("the two oldest files are missing", remove(0, 44), offsets((0, 58))),
    Corruption("all files are missing", remove(0, 44, 58), from_on(0)),
    Corruption("the middle file has a higher name", rename(44, 50), offsets((44, 50), (50, 58))),
    Corruption("the middle file has a lower name", rename(44, 40), offsets((40, 58))),
    Corruption("the newest file has a higher name", rename(58, 61), from_on(58)),
    Corruption("the newest file has a name far off", rename(58, 10**15),
               offsets((58, 10**15))),
    Corruption("the newest file has a lower name", rename(58, 50), from_on(50)),
    Corruption("the first file has a higher name", rename(0, 7), offsets((0, 7), (7, 44))),
    Corruption("two files are swapped", swap(0, 44), offsets((0, 44), (44, 58))),
    Corruption("the newest is swapped", swap(44, 58), from_on(44)),
]  # fmt: skip

# In place, but with other bytes in them. What the checks of a start do not read is not seen by it.
BROKEN = [
    Corruption("a sealed file is empty", cut(1, 0), offsets((44, 58))),
    Corruption("a sealed file is garbage", overwrite(44, GARBAGE), offsets((44, 58))),
    Corruption("a sealed file ends early", cut(0, 9, 10), offsets((25, 44))),
    Corruption("a sealed file ends early, between batches", cut(0, 9), offsets((25, 44))),
    Corruption("the newest file is empty", cut(2, 0), from_on(58)),
    Corruption("the newest file is garbage", overwrite(58, GARBAGE), from_on(58)),
    Corruption("the newest file ends early", cut(2, 3, 40), from_on(64)),
    Corruption("a first header", flip_header(0, 0), offsets((0, 22)), False),
    Corruption("a header between", flip_header(0, 9), offsets((25, 37)), False),
    Corruption("an indexed body", flip_body(0, 8), offsets((22, 37)), False),
    Corruption("a last header", flip_header(0, 17), offsets((40, 44)), False),
    Corruption("all headers of a file", flip_header(1, 0), offsets((44, 58)), False),
    Corruption("a header in each sealed file", both(flip_header(0, 0), flip_header(1, 1)),
               offsets((0, 22), (48, 58)), False),
    Corruption("two places of one file", both(flip_header(0, 2), flip_body(0, 15)),
               offsets((5, 22), (37, 44)), False),
    Corruption("a body of the newest", flip_body(2, 1), up_to_listed(59), False),
    Corruption("a sealed file and the newest", both(flip_header(0, 0), flip_body(2, 1)),
               lambda state: [(0, 22), *up_to_listed(59)(state)], False),
]  # fmt: skip

# Nothing of the log itself.
BESIDE = [
    Corruption("no meta file", lambda d, s: (d / "meta.json").unlink(), offsets((0, 0))),
    Corruption("a meta file of another format",
               write("meta.json", b'{"format": 2, "id": "x", "created": 1, "sum": "0"}\n'),
               offsets((0, 0))),
    Corruption("a meta file that is a list", write("meta.json", b'["sum"]'), offsets((0, 0))),
    Corruption("no checkpoint", lambda d, s: (d / "checkpoint").unlink(), offsets((0, 0))),
    Corruption("an empty checkpoint", write("checkpoint", b""), offsets((0, 0))),
    Corruption("a checkpoint of zeros", write("checkpoint", bytes(8192)), offsets((0, 0))),
    Corruption("neither meta file nor checkpoint",
               both(write("meta.json", b""), write("checkpoint", b"")), offsets((0, 0), (0, 0))),
]  # fmt: skip
