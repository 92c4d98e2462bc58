"""Many cases on one copy of a log: damage it, look, put back what changed.

All cases run, also behind one that failed, so that one bug does not hide another; what they say is
counted and reported together. The syncs are left out: thousands of them take minutes, and whether
they happen is seen elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from logd.storage import disk
from tests.integration.storage.small_log import Files, Part, State, read_files
from tests.support.long_run import LONG

_HEADER_STEP, _BODY_STEP = (1, 1) if LONG else (3, 41)

Case = tuple[str, Files]  # what was done, and the files after it
Look = Callable[[Path, State, Files], None]


class Copy:
    """A copy of a state's files that can be given other files, and its own back."""

    def __init__(self, directory: Path, state: State) -> None:
        self.directory, self.state = directory, state
        directory.mkdir(parents=True)
        self.put(state.files)

    def put(self, files: Files) -> None:
        """Make the directory hold these files and nothing else."""
        there = read_files(self.directory)
        for name in there.keys() - files.keys():
            (self.directory / name).unlink()
        for entry in os.scandir(self.directory):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
        for name, data in files.items():
            if there.get(name) != data:
                path = self.directory / name
                path.unlink(missing_ok=True)  # to truncate it would wait for the disk
                path.write_bytes(data)


def leave_out_syncs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "sync", lambda file: None)
    patch.setattr(disk, "sync_directory", lambda path: None)
    patch.setattr(disk, "drop_cache", lambda file: None)


def sweep(directory: Path, state: State, cases: Iterable[Case], look: Look) -> int:
    """Look at every case; how many there were."""
    __tracebackhide__ = True
    failures: dict[str, list[str]] = defaultdict(list)
    count = 0
    with pytest.MonkeyPatch.context() as patch:
        leave_out_syncs(patch)
        copy = Copy(directory, state)
        for done, files in cases:
            count += 1
            copy.put(files)
            try:
                look(directory, state, files)
            except Exception as error:  # noqa: BLE001  an escaped error is a finding too
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                failures[re.sub(r"[0-9]+", "#", said)].append(f"{done}: {said}")
        copy.put(state.files)
    if failures:
        total = sum(map(len, failures.values()))
        lines = [f"  {len(cases)} times, first {cases[0]}" for cases in failures.values()]
        raise AssertionError("\n".join([f"{total} of {count} cases failed", *lines]))
    return count


# -- cases --------------------------------------------------------------------------------------


def positions(part: Part) -> list[int]:
    """All of them, or in the quick form: of a header a third, of a body its ends and a few more."""
    chosen = {0, len(part.data)}
    for number, batch in enumerate(part.batches):
        chosen |= set(range(batch.position + number % _HEADER_STEP, batch.body, _HEADER_STEP))
        chosen |= set(range(batch.body, batch.end, _BODY_STEP))
        chosen |= {batch.position, batch.position + 1, batch.body - 1, batch.body, batch.end - 1}
    return sorted(chosen)


def some_of(size: int) -> range:
    """Positions of a file that is not a log."""
    return range(0, size, 1 if LONG else 3)


def cuts(state: State, name: str, at: Iterable[int]) -> Iterator[Case]:
    data = state.files[name]
    for position in at:
        if position < len(data):
            yield f"cut at {position}", {**state.files, name: data[:position]}


def flips(state: State, name: str, at: Iterable[int]) -> Iterator[Case]:
    """Each bit of these bytes; in the quick form one bit of each byte, another each time."""
    data = state.files[name]
    for number, position in enumerate(at):
        for bit in range(8) if LONG else [number % 8]:
            if position < len(data):
                files = {**state.files, name: flip(data, position, bit)}
                yield f"bit {bit} of byte {position}", files


def flip(data: bytes, position: int, bit: int = 0) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)
