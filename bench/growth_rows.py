"""Rows about growth: start by size, memory by use, and the cost of a push by the size of a log."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from bench import peers
from bench.daemon_rows import start, start_empty
from bench.machine import allow_connections, resident_mb
from bench.measure import LOGD, Measure, Measures, Point, Row, Sample, Setting, Skip, Target
from bench.programs import Load
from bench.servers import push
from bench.sparse_topic import make_topic
from bench.workloads import BATCH, MESSAGE_BYTES, batches_for, scratch

GB = 1_000_000_000
MB = 1_000_000
YOUNG_BYTES = 1 * GB

Opened = AbstractContextManager[Measures]


# -- starting -----------------------------------------------------------------------------------


@contextmanager
def clean_start(setting: Setting, size: int) -> Iterator[Measures]:
    """After a clean stop, compared with an empty daemon and Redis with the same messages."""
    with scratch(setting) as place:
        data = place / "logd"
        if size > 4 * GB:
            make_topic(data / "topics" / BATCH.topic, int(size * setting.sizes.share))
        else:
            data.mkdir()
            load = batches_for(int(size * setting.sizes.share))
            with peers.logd_on(data, place / "fill.log") as peer:
                setting.programs.load("logd", peer.port, load)
        logs = (place / f"start-{turn}.log" for turn in count())
        measures: dict[str, Measure | Skip] = {
            LOGD: lambda: start(data, next(logs)),
            "empty": lambda: start_empty(setting),
        }
        if size <= 100 * MB:
            measures["redis"] = _redis_start(setting, place, size)
        yield measures


def _redis_start(setting: Setting, place: Path, size: int) -> Measure | Skip:
    if reason := peers.redis_missing():
        return Skip(reason)
    data = place / "redis"
    data.mkdir()
    messages = int(size * setting.sizes.share) // MESSAGE_BYTES
    with peers.redis_on(data, place / "redis.log", "everysec") as peer:
        setting.programs.load("redis", peer.port, Load(16, 100, MESSAGE_BYTES, count=messages))

    def start() -> Sample:
        with peers.redis_on(data, place / "redis.log", "everysec") as peer:
            return Sample(peer.ready_s)

    return start


@contextmanager
def recovery(setting: Setting, size: int) -> Iterator[Measures]:
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
            return start(data, place / f"{turn}-recovered.log")

        def clean() -> Sample:
            return start(data, place / f"{next(turns)}-clean.log")

        yield {LOGD: recover, "started again": clean}


# -- memory -------------------------------------------------------------------------------------


@contextmanager
def memory_of_connections(setting: Setting, number: int) -> Iterator[Measures]:
    """Resident memory with open connections that have sent PING."""
    allow_connections(number)

    def measure(peer: peers.Peer) -> Sample:
        with ExitStack() as stack:
            for _ in range(number):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", peer.port)))
                client.sendall(b"PING\r\n")
                client.recv(64)
            return Sample(resident_mb(peer.pid))

    with scratch(setting) as place:
        yield _logd_and_redis(place, measure)


@contextmanager
def memory_of_topics(setting: Setting, number: int) -> Iterator[Measures]:
    """Resident memory after one message to each topic."""

    def measure(peer: peers.Peer) -> Sample:
        protocol = peer.directory.name
        setting.programs.load(protocol, peer.port, Load(topics=number, count=number))
        return Sample(resident_mb(peer.pid))

    with scratch(setting) as place:
        yield _logd_and_redis(place, measure)


def _logd_and_redis(place: Path, measure: Callable[[peers.Peer], Sample]) -> Measures:
    """A new server for each turn, since memory is not returned after use."""
    turns = count()

    def start(serve: Callable[[Path, str], peers.Serving], fsync: str) -> Sample:
        with serve(place / str(next(turns)), fsync) as peer:
            return measure(peer)

    missing = peers.redis_missing()
    redis = Skip(missing) if missing else partial(start, peers.redis, "everysec")
    return {LOGD: partial(start, peers.logd, "interval"), "redis": redis}


# -- age ----------------------------------------------------------------------------------------


@contextmanager
def age(setting: Setting, size: int) -> Iterator[Measures]:
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


def _by_size(
    name: str, what: str, opening: Callable[..., Opened], point: Point, *sizes_mb: int
) -> Iterator[Row]:
    for size_mb in sizes_mb:
        text = f"{size_mb // 1000} GB" if size_mb >= 1000 else f"{size_mb} MB"
        short = text.replace(" GB", "g").replace(" MB", "m")
        at_size = partial(opening, size=size_mb * MB)
        here = replace(point, at=size_mb / 1000)
        yield Row(f"{name}-{short}", what.format(text), "s", at_size, point=here)


def _by_number(of: str, opening: Callable[..., Opened], *numbers: int) -> Iterator[Row]:
    for number in numbers:
        point = Point(f"memory-{of}", "", number, of)
        with_number = partial(opening, number=number)
        name, what = f"memory-{number}{of[0]}", f"resident, {number} {of}"
        yield Row(name, what, "MB", with_number, point=point)


START = Point("start", "after a clean stop", 0, "GB in the log")
RECOVER = replace(START, line="after a kill")
AGE = replace(START, plot="age", line="")
AGE_TARGET = Target(1.1, at_most=True, beside="1 GB")
ROWS = (
    *_by_size("start", "start on {} after a clean stop", clean_start, START, 50, 500, 2000, 50_000),
    *_by_size("recover", "start on {} after a kill, unsynced", recovery, RECOVER, 50, 200, 1000),
    *_by_number("connections", memory_of_connections, 10, 100, 1000),
    *_by_number("topics", memory_of_topics, 10, 100, 1000),
    *(
        replace(row, unit="µs", target=AGE_TARGET)
        for row in _by_size("age", "cost of a 4 KB batch in a log of {}", age, AGE, 10_000, 50_000)
    ),
)
