"""A small topic of three partitions, written by the real storage code, and a model of it.

It has all encodings, batches with an id, a payload that is itself a sound batch, batches that the
index lists and batches that it does not. A `State` is a copy of its files at a moment at which a
start may find them. The model is made from what was pushed and from a walk of its own over the
files; it shares no code with what it is compared to.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from xxhash import xxh3_64_intdigest

from logd.batch import Buffer, body_sum, encode_header
from logd.storage import disk
from logd.topic import Topic
from tests.support.topic_loop import START_MS, Loop, batch_of, close, create, push

TOPIC = "app"
INTERVAL_BYTES = 4096  # of the index; written down again, so that a change of it shows

Files = dict[str, bytes]


# -- the model ----------------------------------------------------------------------------------


class Stored(NamedTuple):
    """One batch: its place in the topic and in its file, and the messages that were pushed."""

    first: int
    next: int
    position: int
    body: int  # where its body starts
    end: int
    time_ms: int
    id: str
    sum: str
    messages: tuple[bytes, ...]


@dataclass(frozen=True, repr=False)
class Part:
    """One partition: its bytes and its batches."""

    first: int
    data: bytes
    batches: tuple[Stored, ...]

    @property
    def name(self) -> str:
        return f"{self.first:020d}.log"

    @property
    def index_name(self) -> str:
        return f"{self.first:020d}.index"

    @property
    def next(self) -> int:
        return self.batches[-1].next if self.batches else self.first

    def index(self, *, sealed: bool) -> bytes:
        """The bytes that its index file must have."""
        listed: list[Stored] = []
        for batch in self.batches:
            if not listed or batch.position - listed[-1].position >= INTERVAL_BYTES:
                listed.append(batch)
        entries = [(batch.first, batch.position, batch.time_ms) for batch in listed]
        if sealed and self.batches:
            entries.append((self.next, len(self.data), self.batches[-1].time_ms))
        return b"".join(map(index_entry, entries))

    def cut(self, end: int) -> Part:
        """What is left of it without everything from the batch that ends behind `end` on."""
        kept = tuple(batch for batch in self.batches if batch.end <= end)
        return Part(self.first, self.data[: kept[-1].end if kept else 0], kept)


def index_entry(fields: tuple[int, int, int]) -> bytes:
    packed = struct.pack("<QQQ", *fields)
    return packed + struct.pack("<Q", xxh3_64_intdigest(packed))


class Checkpoint(NamedTuple):
    """What a slot of a checkpoint file says."""

    sequence: int
    first: int
    partition: int
    position: int
    next: int
    epoch: int
    clean: bool


def read_slot(slot: bytes) -> Checkpoint | None:
    """What a sound slot says; None for an empty one."""
    line = slot.rstrip(b"\0").decode()
    if not line:
        return None
    _, sequence, *words, _sum = line.split()
    values = {name: int(value) for name, _, value in (word.partition("=") for word in words)}
    return Checkpoint(
        int(sequence), values["first"], values["partition"], values["position"], values["next"],
        values["epoch"], bool(values["clean"]),
    )  # fmt: skip


def slots(data: bytes) -> tuple[bytes, bytes]:
    return data[:4096], data[4096:]


@dataclass(frozen=True, repr=False)
class State:
    """The files of a topic at one moment, and what is in them."""

    name: str
    files: Files
    parts: tuple[Part, ...]

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def active(self) -> Part:
        return self.parts[-1]

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return max(filter(None, map(read_slot, slots(self.files["checkpoint"]))))

    @property
    def batches(self) -> list[Stored]:
        return [batch for part in self.parts for batch in part.batches]

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def listed(self, part: Part) -> list[Stored]:
        """The batches that the index file of a partition lists, as it is."""
        data = self.files.get(part.index_name, b"")
        positions = {struct.unpack_from("<Q", data, i + 8)[0] for i in range(0, len(data), 32)}
        return [batch for batch in part.batches if batch.position in positions]

    def with_files(self, name: str, **changes: bytes | None) -> State:
        """The same log with other files beside it."""
        files = {**self.files, **{key: data for key, data in changes.items() if data is not None}}
        for key in (key for key, data in changes.items() if data is None):
            del files[key]
        return replace(self, name=name, files=files)


def walked(name: str, data: bytes, pushed: dict[int, tuple[bytes, ...]]) -> Part:
    """A partition from its bytes, read by nothing but splitting lines."""
    batches = []
    position = 0
    while position < len(data):
        line, _, _ = data[position:].partition(b"\r\n")
        word, first, messages, size, time_ms, _enc, sum_, id_, _head = line.decode().split(" ")
        body = position + len(line) + 2
        stored = Stored(
            int(first), int(first) + int(messages), position, body, body + int(size),
            int(time_ms), id_, sum_, pushed[int(first)],
        )  # fmt: skip
        assert word == "BATCH"
        assert len(stored.messages) == int(messages)
        batches.append(stored)
        position = stored.end
    return Part(int(name.removesuffix(".log")), data, tuple(batches))


def read_files(directory: Path) -> Files:
    """Every file below a directory, by its path in it."""
    found: Files = {}
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            below = read_files(Path(entry.path))
            found |= {f"{entry.name}/{name}": data for name, data in below.items()}
        else:
            with open(entry.path, "rb", buffering=0) as file:
                found[entry.name] = file.read()
    return found


# -- writing it ---------------------------------------------------------------------------------


def forgery(offset: int) -> bytes:
    """A message that is a whole batch, sound in itself."""
    body = b"not what was written\n"
    return encode_header(offset, 1, len(body), START_MS + 10**6, "lines", body_sum(body)) + body


def _lines(n: int, count: int, size: int = 20) -> list[bytes]:
    text = b"abcdefghijklmnopqrstuvwxyz" * (size // 26 + 1)
    return [(b"%06d." % (n + i) + text)[:size] for i in range(count)]


def _odd(n: int, count: int) -> list[bytes]:
    """Messages that only fit into a sized body; some are empty."""
    return [b"%d\n\r\n\x00\xff" % (n + i) * (i % 3) for i in range(count)]


class Say(NamedTuple):
    """One push."""

    messages: list[bytes]
    zstd: bool = False
    id: str = "-"


FIRST = [
    Say(_lines(0, 1)), Say(_odd(10, 4)), Say(_lines(20, 2), id="p:1"), Say(_lines(30, 6, 60), True),
    Say(_lines(40, 3, 900)), Say([b"before", forgery(20), b"after"]),
    Say(_lines(60, 1), id="q.r-s:41"), Say(_lines(70, 2, 500)), Say(_lines(80, 3), id="p:2"),
    Say(_lines(90, 1, 30)), Say(_odd(100, 5)), Say(_lines(110, 3, 60), True),
    Say(_lines(120, 1, 2600)), Say(_lines(130, 1), id="p:3"), Say(_lines(140, 1, 900)),
    Say(_lines(150, 2), id="q.r-s:42"), Say(_lines(160, 1)), Say(_odd(170, 4), True),
]  # fmt: skip
SECOND = [
    Say(_lines(200, 4, 60), True), Say(_lines(210, 2), id="p:4"), Say(_lines(220, 2, 200)),
    Say(_odd(230, 4)), Say(_lines(240, 2), id="once:0"),
]  # fmt: skip
THIRD_DURABLE = [
    Say(_lines(300, 1), id="p:5"), Say(_lines(310, 2, 1300)), Say(_lines(320, 3, 60), True),
    Say(_lines(330, 1, 33)),
]  # fmt: skip
THIRD_BEHIND = [
    Say(_lines(340, 2, 100)), Say(_lines(350, 2), id="q.r-s:43"), Say(_lines(360, 1, 700)),
    Say(_odd(370, 3)), Say(_lines(380, 2, 60), True), Say(_lines(390, 1), id="p:6"),
]  # fmt: skip


_write_at = disk.write_at


def _write_no_batch(file: disk.File, buffers: Sequence[Buffer], position: int) -> None:
    if bytes(buffers[0]).startswith(b"BATCH "):
        raise OSError(28, "full")
    _write_at(file, buffers, position)


class _Writing:
    def __init__(self, directory: Path) -> None:
        self.directory, self.loop = directory, Loop()
        self.pushed: dict[int, tuple[bytes, ...]] = {}
        self.topic: Topic = create(directory, self.loop, partition_age_s=60.0)

    def push(self, script: list[Say]) -> None:
        for messages, zstd, id_ in script:
            self.loop.time_s += 0.05
            pushing = push(self.topic, self.loop, batch_of(messages, zstd=zstd, id_=id_))
            assert pushing.is_stored, pushing.error
            self.pushed[pushing.offset] = tuple(messages)

    def roll(self) -> None:
        """The next partition is there, but the disk was too full to write to it."""
        self.loop.time_s += 61
        with mock.patch.object(disk, "write_at", _write_no_batch):
            assert push(self.topic, self.loop, batch_of([b"refused"])).error is not None
        assert self.topic.active.size == 0

    def state(self, name: str) -> State:
        files = read_files(self.directory)
        logs = [file for file in sorted(files) if file.endswith(".log")]
        return State(name, files, tuple(walked(log, files[log], self.pushed) for log in logs))


def write_states(directory: Path) -> dict[str, State]:
    """Write the log once, and copy its files at each moment of interest."""
    writing = _Writing(directory / TOPIC)
    writing.push(FIRST)
    writing.roll()
    writing.push(SECOND)
    writing.roll()
    rolled = writing.state("rolled")
    writing.push(THIRD_DURABLE)
    writing.loop.pass_time(2)  # a sync is due, and moves the checkpoint
    writing.push(THIRD_BEHIND)
    killed = writing.state("killed")
    close(writing.topic, writing.loop)
    clean = writing.state("clean")
    # The index is written beside the log and may be ahead of the checkpoint: batches that came
    # during a sync are listed, but are not what it synced.
    index = clean.active.index_name
    ahead = killed.with_files("ahead", **{index: clean.files[index]})
    return {state.name: state for state in (clean, killed, ahead, rolled)}
