"""Readers that wait at the end of a topic until there is more to read.

Each is called once, when messages become readable or the topic closes. While they are called,
`newest` holds the bytes just written, so that a reader that wants exactly these need not read
them from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from logd.batch import Buffer


class NewestWrite(NamedTuple):
    """The batches of the write that woke the readers."""

    offset: int
    messages: int
    size: int
    buffers: Sequence[Buffer]


class WaitingReaders:
    def __init__(self) -> None:
        self.calls: dict[object, Callable[[], None]] = {}
        self.newest: NewestWrite | None = None

    def add(self, reader: object, call: Callable[[], None]) -> None:
        self.calls[reader] = call

    def remove(self, reader: object) -> None:
        self.calls.pop(reader, None)

    def wake(self, newest: NewestWrite | None = None) -> None:
        calls, self.calls = self.calls, {}
        self.newest = newest
        for call in calls.values():
            call()
        self.newest = None
