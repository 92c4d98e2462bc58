"""Up to where a topic is known to be on disk, in a file of two slots that are written alternately.

A slot is one line of text with a checksum, so that `cat` shows it. It is written after the sync
that it records has returned, so it is never ahead of the disk. The valid slot with the higher
sequence number counts: a write torn by a crash loses one step, not the checkpoint.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from logd.storage import disk
from logd.storage.disk import File

SLOT_BYTES = 4096
_SLOT = re.compile(
    rb"(checkpoint ([0-9]+) first=([0-9]+) partition=([0-9]+) position=([0-9]+)"
    rb" next=([0-9]+) epoch=([0-9]+) began=([0-9]+) since=([0-9]+) clean=([01]) )"
    rb"([0-9a-f]{16})\n"
)


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Everything below `position` of `partition`, and all partitions before it, is durable."""

    first: int = 0
    partition: int = 0
    position: int = 0
    next: int = 0  # the offset at that position
    epoch: int = 1
    began: int = 0  # the offset at which this epoch began
    since_ms: int = 0  # the time of that; no later batch is older
    clean: bool = True
    sequence: int = 0

    def encode(self) -> bytes:
        line = (
            f"checkpoint {self.sequence} first={self.first} partition={self.partition}"
            f" position={self.position} next={self.next} epoch={self.epoch} began={self.began}"
            f" since={self.since_ms} clean={int(self.clean)} "
        ).encode()
        return line + f"{xxh3_64_hexdigest(line)}\n".encode()


def _decode(slot: bytes) -> CheckpointState | None:
    match = _SLOT.match(slot)
    if match is None or xxh3_64_hexdigest(match[1]).encode() != match[11]:
        return None
    sequence, first, partition, position, next_, epoch, began, since_ms, clean = map(
        int, match.groups()[1:10]
    )
    return CheckpointState(
        first, partition, position, next_, epoch, began, since_ms, bool(clean), sequence
    )


def saved_state(file: File) -> CheckpointState | None:
    """The state in the file; None if neither slot is valid."""
    data = file.read_waiting(0, 2 * SLOT_BYTES)
    slots = [_decode(data[:SLOT_BYTES]), _decode(data[SLOT_BYTES:])]
    return max((slot for slot in slots if slot), key=lambda s: s.sequence, default=None)


class Checkpoint:
    def __init__(self, path: Path) -> None:
        self.state: CheckpointState | None = None
        try:
            self._file = File(path, os.O_RDWR)
        except FileNotFoundError:
            return
        self.state = saved_state(self._file)

    @classmethod
    def create(cls, path: Path, state: CheckpointState) -> Checkpoint:
        disk.create(path, cls.blank(state))
        return cls(path)

    @staticmethod
    def blank(state: CheckpointState) -> bytes:
        """The content of a file with this state in one slot and nothing in the other."""
        before = b"\0" * (state.sequence % 2 * SLOT_BYTES)
        return (before + state.encode()).ljust(2 * SLOT_BYTES, b"\0")

    def write(self, state: CheckpointState, *, synced: bool = False) -> None:
        """Write `state` to the older slot. Changes of `first` and `clean` have to be synced."""
        sequence = (self.state.sequence if self.state else 0) + 1
        state = replace(state, sequence=sequence)
        slot = state.encode().ljust(SLOT_BYTES, b"\0")
        disk.write_at(self._file, [slot], (sequence % 2) * SLOT_BYTES)
        if synced:
            disk.sync(self._file)
        self.state = state
