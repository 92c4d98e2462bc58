"""Run one input again that was written to build/fuzz: python tests/fuzz/replay.py FILE

Over TCP and HTTP it goes to a fresh daemon, and what comes back is shown; files are put into a
directory and opened. What failed only because of what came before it needs the whole run, by its
seed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from fuzz.failing import kept
from fuzz.scratch import scratch
from fuzz.victim import victim
from fuzz.wire import exchange
from logd import offline
from logd.errors import LogdError


def over_a_connection(pieces: list[bytes], *, http: bool) -> None:
    with victim() as target, target.dial(http=http) as connection:
        got = bytearray()
        exchange(
            connection, pieces, got.extend, lambda: False, target.patience, half_close=not http
        )
        print(f"sent {b''.join(pieces)!r}\ngot {bytes(got)!r}")
        target.look()


def in_files(names: list[str], contents: list[bytes]) -> None:
    with scratch() as directory:
        for name, data in zip(names, contents, strict=True):
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_bytes(data)
        for topic in sorted({name.partition("/")[0] for name in names}):
            try:
                print(offline.check(directory / topic).report)
            except LogdError as error:
                print(topic, error)


def main(path: Path) -> None:
    told, pieces = kept(path)
    if told["door"] == "files":
        in_files(told["names"], pieces)
    else:
        over_a_connection(pieces, http=told["door"] == "http")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
