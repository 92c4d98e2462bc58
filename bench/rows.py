"""What is measured. Each function opens a row: it starts what the row needs, hands out its
contestants, and clears up behind them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench import client_rows, http_rows, peers, spark_rows, storage_rows, tls_rows
from bench.machine import resident_mb
from bench.measure import LOGD, Contestants, Measure, Row, Sample, Setting, Skip, Target
from bench.processes import ROOT, BenchError, environment
from bench.programs import Load
from bench.storage_rows import BATCH, MESSAGE_BYTES, batches_for, scratch

READ_BYTES = 8 << 20  # of one READ; the server may give less


# -- small pushes -------------------------------------------------------------------------------


@contextmanager
def small_pushes(
    setting: Setting, connections: int, depth: int, fsync: str, appendfsync: str, with_echo: bool
) -> Iterator[Contestants]:
    load = Load(
        connections=connections,
        depth=depth,
        message_bytes=MESSAGE_BYTES,
        seconds=setting.sizes.seconds,
        warmup_s=setting.sizes.warmup_s,
    )

    def loaded(protocol: str, peer: peers.Peer) -> Measure:
        return lambda: _rate(setting, protocol, peer, load)

    with scratch(setting) as place, ExitStack() as stack:
        ours = stack.enter_context(peers.logd(place, fsync))
        contestants: dict[str, Measure | Skip] = {LOGD: loaded("logd", ours)}
        if reason := peers.redis_missing():
            contestants["redis"] = Skip(reason)
        else:
            theirs = stack.enter_context(peers.redis(place, appendfsync))
            contestants["redis"] = loaded("redis", theirs)
        if with_echo:
            bare = stack.enter_context(peers.echo(place, load.push_bytes))
            contestants["echo"] = loaded("echo", bare)
        yield contestants


def _rate(setting: Setting, protocol: str, peer: peers.Peer, load: Load) -> Sample:
    facts = setting.programs.load(protocol, peer.port, load)
    if protocol == "echo" and facts["request_bytes"] != load.push_bytes:
        raise BenchError("the echo counts requests of another length than the generator sends")
    return Sample(facts["per_second"], facts)


# -- beside the kernel --------------------------------------------------------------------------


@contextmanager
def large_pushes(setting: Setting) -> Iterator[Contestants]:
    """Until all is acknowledged: beside a plain loop, and beside a bare server in C.

    A new server and a new file each time, so that nothing starts with a page cache full of its own.
    """
    load = batches_for(setting.sizes.push_bytes)

    def push() -> Sample:
        with scratch(setting) as place, peers.logd(place, "interval") as peer:
            return _throughput(setting.programs.load("logd", peer.port, load))

    def write() -> Sample:
        with scratch(setting) as place:
            return _throughput(_write(setting, place, load, synced=False))

    def sink() -> Sample:
        with scratch(setting) as place, peers.sink(place, setting.programs, load) as peer:
            return _throughput(setting.programs.load("logd", peer.port, load))

    write()  # in a virtual machine the first touch of a page is slow, whoever writes
    yield {LOGD: push, "writev": write, "sink": sink}


@contextmanager
def large_pushes_to_disk(setting: Setting) -> Iterator[Contestants]:
    """The same, but the clock runs on until the disk has it all."""
    load = batches_for(setting.sizes.push_bytes)

    def push() -> Sample:
        with scratch(setting) as place, peers.logd(place, "interval") as peer:
            facts = setting.programs.load("logd", peer.port, load)
            start = time.perf_counter()
            os.sync()
            seconds = facts["seconds"] + time.perf_counter() - start
            return Sample(load.count * load.body_bytes / seconds / 1e6, facts)

    def write() -> Sample:
        with scratch(setting) as place:
            return _throughput(_write(setting, place, load, synced=True))

    write()
    yield {LOGD: push, "writev+sync": write}


def _write(setting: Setting, place: Path, load: Load, *, synced: bool) -> Mapping[str, float]:
    return setting.programs.writev(place / "plain", load.count, load.body_bytes, synced=synced)


def _throughput(facts: Mapping[str, float]) -> Sample:
    return Sample(facts["mb_per_second"], facts)


@contextmanager
def reads(setting: Setting) -> Iterator[Contestants]:
    """The plain sender sends the very files that the server reads from."""
    with scratch(setting) as place, peers.logd(place, "interval") as peer:
        setting.programs.load("logd", peer.port, batches_for(setting.sizes.topic_bytes))
        files = peer.partitions(BATCH.topic)
        stored_bytes = sum(file.stat().st_size for file in files)

        def drain() -> Sample:
            facts = setting.programs.drain(peer.port, BATCH.topic, READ_BYTES)
            if facts["bytes"] != stored_bytes:
                raise BenchError(f"read {facts['bytes']} bytes of a topic of {stored_bytes}")
            return _throughput(facts)

        def send() -> Sample:
            return _throughput(setting.programs.sendfile(files))

        drain()  # now all of it is in the page cache
        yield {LOGD: drain, "sendfile": send}


# -- at rest ------------------------------------------------------------------------------------


@contextmanager
def start_up(setting: Setting) -> Iterator[Contestants]:
    def start() -> Sample:
        with scratch(setting) as place, peers.logd(place, "interval") as peer:
            return Sample(peer.ready_s)

    yield {LOGD: start}


@contextmanager
def idle_memory(setting: Setting) -> Iterator[Contestants]:
    """After one message to each of ten topics."""

    def rest() -> Sample:
        with scratch(setting) as place, peers.logd(place, "interval") as peer:
            setting.programs.load("logd", peer.port, Load(topics=10, count=10))
            return Sample(resident_mb(peer.pid))

    yield {LOGD: rest}


@contextmanager
def help_time(setting: Setting) -> Iterator[Contestants]:
    script = Path(sys.executable).with_name("log-cli")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "cli"]

    def show() -> Sample:
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "--help"], capture_output=True, cwd=ROOT, env=environment(), check=False
        )
        if done.returncode:
            raise BenchError(f"log-cli --help ended with {done.returncode}")
        return Sample(time.perf_counter() - start)

    yield {LOGD: show}


# -- the table ----------------------------------------------------------------------------------


def _small(connections: int, depth: int, fsync: str = "interval") -> Row:
    always = fsync == "always"
    pace = "one at a time" if depth == 1 else f"{depth} in flight"
    clients = "1 connection" if connections == 1 else f"{connections} connections"
    opening = partial(
        small_pushes,
        connections=connections,
        depth=depth,
        fsync=fsync,
        appendfsync="always" if always else "everysec",
        with_echo=not always,
    )
    return Row(
        f"{'always' if always else 'small'}-{connections}x{depth}",
        f"PUSH 100 B, {clients}, {pace}" + (", fsync always" if always else ""),
        "/s",
        opening,
        _beside_redis(depth, always),
    )


def _beside_redis(depth: int, always: bool) -> Target:
    if always:
        return Target(0.95 if depth == 1 else 1.1, beside="redis")
    return Target(0.85 if depth == 1 else 1.2, beside="redis")


ROWS = (
    Row(
        "push-64k",
        "PUSH 64 KB batches, 16 connections",
        "MB/s",
        large_pushes,
        Target(0.85, beside="writev"),
    ),
    Row(
        "push-64k-disk",
        "the same, until it is on disk",
        "MB/s",
        large_pushes_to_disk,
        Target(0.85, beside="writev+sync"),
    ),
    Row("read", "READ a whole topic", "MB/s", reads, Target(0.8, beside="sendfile")),
    _small(1, 1),
    _small(1, 100),
    _small(16, 1),
    _small(16, 100),
    _small(16, 1, "always"),
    _small(16, 100, "always"),
    Row(
        "always-writer",
        "p99 of a steady writer beside that",
        "µs",
        partial(storage_rows.neighbour, mode="writer"),
        Target(3.0, at_most=True, beside="alone"),
    ),
    Row(
        "always-reader",
        "p99 of a steady reader beside that",
        "µs",
        partial(storage_rows.neighbour, mode="reader"),
        Target(3.0, at_most=True, beside="alone"),
    ),
    *client_rows.ROWS,
    *http_rows.ROWS,
    *tls_rows.ROWS,
    *spark_rows.ROWS,
    Row("start-ready", "start to ready line", "s", start_up, Target(0.6, at_most=True)),
    Row(
        "start-1000",
        "the same with 1,000 sealed partitions",
        "s",
        storage_rows.start_with_partitions,
        Target(1.0, at_most=True),
    ),
    Row("check", "log-cli check's scan, 64 KB batches", "MB/s", storage_rows.check, Target(1000.0)),
    Row("start-idle", "resident, ten topics", "MB", idle_memory, Target(60.0, at_most=True)),
    Row("start-help", "log-cli --help", "s", help_time, Target(0.2, at_most=True)),
)
