"""Run one input again that is in build/fuzz: python -m tests.integration.fuzz.replay FILE

Over TCP and HTTP it goes to a fresh daemon, and what comes back is shown; files are put into a
directory and opened. What failed only because of what came before it needs the whole run, by its
seed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from logd.errors import LogdError
from logd.offline import integrity
from tests.integration.fuzz.failures import kept
from tests.integration.fuzz.fuzzed_daemon import fuzzed_daemon
from tests.integration.fuzz.memory_directory import memory_directory
from tests.integration.fuzz.wire import exchange


def over_a_connection(pieces: list[bytes], *, http: bool) -> None:
    with fuzzed_daemon() as target, target.dial(http=http) as connection:
        got = bytearray()
        exchange(
            connection, pieces, got.extend, lambda: False, target.patience, half_close=not http
        )
        print(f"sent {b''.join(pieces)!r}\ngot {bytes(got)!r}")
        target.look()


def in_files(names: list[str], contents: list[bytes]) -> None:
    with memory_directory() as directory:
        for name, data in zip(names, contents, strict=True):
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_bytes(data)
        for topic in sorted({name.partition("/")[0] for name in names}):
            try:
                print(integrity.check(directory / topic).report)
            except LogdError as error:
                print(topic, error)


def main(path: Path) -> None:
    told, pieces = kept(path)
    if told["kind"] == "files":
        in_files(told["names"], pieces)
    else:
        over_a_connection(pieces, http=told["kind"] == "http")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
