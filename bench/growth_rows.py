"""Rows about growth: start by size, memory by use, and the cost of a push by the size of a log."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from bench import peers
from bench.machine import allow_connections, resident_mb
from bench.measure import LOGD, Contestants, Measure, Point, Row, Sample, Setting, Skip, Target
from bench.programs import Load
from bench.servers import push
from bench.sparse_topic import make_topic
from bench.workloads import BATCH, MESSAGE_BYTES, batches_for, scratch

GB = 1_000_000_000
MB = 1_000_000
YOUNG_BYTES = 1 * GB


# -- starting -----------------------------------------------------------------------------------


@contextmanager
def clean_start(setting: Setting, size: int) -> Iterator[Contestants]:
    """After a clean stop, compared with an empty daemon and Redis with the same messages."""
    small = size <= 100 * MB
    with scratch(setting) as place, ExitStack() as stack:
        data = place / "logd"
        if size > 4 * GB:
            make_topic(data / "topics" / BATCH.topic, int(size * setting.sizes.share))
        else:
            data.mkdir()
            load = batches_for(int(size * setting.sizes.share))
            with peers.logd_on(data, place / "fill.log") as peer:
                setting.programs.load("logd", peer.port, load)
        logs = (place / f"start-{turn}.log" for turn in count())
        contestants: dict[str, Measure | Skip] = {
            LOGD: lambda: _start(data, next(logs)),
            "empty": lambda: _start_empty(setting),
        }
        if small:
            contestants["redis"] = _redis_start(setting, stack, place, size)
        yield contestants


def _start(data: Path, log: Path) -> Sample:
    with peers.logd_on(data, log) as peer:
        return Sample(peer.ready_s)


def _start_empty(setting: Setting) -> Sample:
    with scratch(setting) as place, peers.logd(place, "interval") as peer:
        return Sample(peer.ready_s)


def _redis_start(setting: Setting, stack: ExitStack, place: Path, size: int) -> Measure | Skip:
    if reason := peers.redis_missing():
        return Skip(reason)
    data = place / "redis"
    data.mkdir()
    messages = int(size * setting.sizes.share) // MESSAGE_BYTES
    with peers.redis_on(data, place / "redis.log", "everysec") as peer:
        load = Load(16, 100, MESSAGE_BYTES).limited_to(messages)
        setting.programs.load("redis", peer.port, load)

    def start() -> Sample:
        with peers.redis_on(data, place / "redis.log", "everysec") as peer:
            return Sample(peer.ready_s)

    return start


@contextmanager
def recovery(setting: Setting, size: int) -> Iterator[Contestants]:
    """After a kill, with an unsynced newest file, compared with a clean start."""
    load = batches_for(int(size * setting.sizes.share))
    with scratch(setting) as place:
        turns, data = count(), place / "logd"

        def recover() -> Sample:
            turn = next(turns)
            shutil.rmtree(data, ignore_errors=True)  # of the previous turn
            data.mkdir()
            with peers.logd_on(data, place / f"{turn}-filled.log", "--fsync", "never") as peer:
                setting.programs.load("logd", peer.port, load)
                os.kill(peer.pid, signal.SIGKILL)
            return _start(data, place / f"{turn}-recovered.log")

        def clean() -> Sample:
            return _start(data, place / f"{next(turns)}-clean.log")

        yield {LOGD: recover, "started again": clean}


# -- memory -------------------------------------------------------------------------------------


@contextmanager
def memory_of_connections(setting: Setting, connections: int) -> Iterator[Contestants]:
    """Resident memory with open connections that have sent PING."""
    allow_connections(connections)

    def measure(peer: peers.Peer) -> Sample:
        with ExitStack() as stack:
            for _ in range(connections):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", peer.port)))
                client.sendall(b"PING\r\n")
                client.recv(64)
            return Sample(resident_mb(peer.pid))

    with scratch(setting) as place:
        yield _logd_and_redis(place, measure)


@contextmanager
def memory_of_topics(setting: Setting, topics: int) -> Iterator[Contestants]:
    """Resident memory after one message to each topic."""

    def measure(peer: peers.Peer) -> Sample:
        load = Load(topics=topics, count=topics)
        protocol = "redis" if peer.directory.name == "redis" else "logd"
        setting.programs.load(protocol, peer.port, load)
        return Sample(resident_mb(peer.pid))

    with scratch(setting) as place:
        yield _logd_and_redis(place, measure)


def _logd_and_redis(place: Path, measure: Callable[[peers.Peer], Sample]) -> Contestants:
    """A new server for each turn, since memory is not returned after use."""
    turns = count()

    def ours() -> Sample:
        with peers.logd(place / str(next(turns)), "interval") as peer:
            return measure(peer)

    def theirs() -> Sample:
        with peers.redis(place / str(next(turns)), "everysec") as peer:
            return measure(peer)

    missing = peers.redis_missing()
    return {LOGD: ours, "redis": Skip(missing) if missing else theirs}


# -- age ----------------------------------------------------------------------------------------


@contextmanager
def age(setting: Setting, size: int) -> Iterator[Contestants]:
    """The time of a 4 KB batch at the end of a log of this size, compared with one of 1 GB."""
    shape = Load(16, 1, MESSAGE_BYTES, 4096, topic="old")
    load = shape.lasting(2 * setting.sizes.seconds, setting.sizes.warmup_s)

    def cost(peer: peers.Peer) -> Sample:
        sample = push(setting, "logd", peer, load)
        return Sample(1e6 / sample.value, sample.facts)

    with scratch(setting) as place, ExitStack() as stack:

        def aged(name: str, size: int) -> Measure:
            data = place / name
            make_topic(data / "topics" / shape.topic, size)
            peer = stack.enter_context(peers.logd_on(data, place / f"{name}.log"))
            return lambda: cost(peer)

        yield {LOGD: aged("old", size), "1 GB": aged("young", YOUNG_BYTES)}


# -- the rows -----------------------------------------------------------------------------------


def _size(size: int) -> str:
    return f"{size // GB} GB" if size >= GB else f"{size // MB} MB"


def _short(size: int) -> str:
    return _size(size).replace(" GB", "g").replace(" MB", "m")


def _starts(size: int) -> Row:
    return Row(
        f"start-{_short(size)}",
        f"start on {_size(size)} after a clean stop",
        "s",
        partial(clean_start, size=size),
        point=Point("start", "after a clean stop", size / GB, "GB in the log"),
    )


def _recovers(size: int) -> Row:
    return Row(
        f"recover-{_short(size)}",
        f"start on {_size(size)} after a kill, nothing synced",
        "s",
        partial(recovery, size=size),
        point=Point("start", "after a kill", size / GB, "GB in the log"),
    )


def _connections(number: int) -> Row:
    point = Point("memory-connections", "", number, "connections")
    opening = partial(memory_of_connections, connections=number)
    return Row(f"memory-{number}c", f"resident, {number} connections", "MB", opening, point=point)


def _topics(number: int) -> Row:
    point = Point("memory-topics", "", number, "topics")
    opening = partial(memory_of_topics, topics=number)
    return Row(f"memory-{number}t", f"resident, {number} topics", "MB", opening, point=point)


def _ages(size: int) -> Row:
    return Row(
        f"age-{_short(size)}",
        f"cost of a 4 KB batch in a log of {_size(size)}",
        "µs",
        partial(age, size=size),
        Target(1.1, at_most=True, beside="1 GB"),
        point=Point("age", "", size / GB, "GB in the log"),
    )


ROWS = (
    *map(_starts, (50 * MB, 500 * MB, 2 * GB, 50 * GB)),
    *map(_recovers, (50 * MB, 200 * MB, 1 * GB)),
    *map(_connections, (10, 100, 1000)),
    *map(_topics, (10, 100, 1000)),
    *map(_ages, (10 * GB, 50 * GB)),
)
