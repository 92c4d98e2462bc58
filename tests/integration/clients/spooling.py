"""A program that is killed again and again: it pushes numbered batches through a spool.

python spooling.py ADDRESS TOPIC SPOOL push | finish

Where it has to go on it knows from the note of the newest batch in the spool alone. It prints each
number it has pushed, for whoever wants to kill it at a certain moment.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from logd import Writer


def batch(number: int) -> list[bytes]:
    """The messages of a batch: one to five, some of them with line ends."""
    return [
        b"%d.%d" % (number, i) + b"\n" * (number % 11 == 0) + b"." * (number * 7 % 300)
        for i in range(number % 5 + 1)
    ]


def main(address: str, topic: str, spool: str, what: str) -> None:
    with Writer(
        address, topic, spool=Path(spool), spool_bytes=200_000, timeout_s=0.5, max_in_flight=64
    ) as writer:
        assert writer.spool is not None
        last = 0
        for _, note in writer.spool.notes(0):
            last = int(note)
        if what == "finish":
            writer.flush(60)
            print(last)
            return
        for number in count(last + 1):
            writer.push(batch(number), str(number))
            print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
