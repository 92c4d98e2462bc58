"""Rows about pushes: small ones compared with other servers, large ones with the kernel."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product

from bench import peers
from bench.measure import LOGD, Measure, Measures, Row, Sample, Setting, Skip, Target
from bench.programs import Load
from bench.servers import push, pushing, throughput
from bench.workloads import BATCH, BATCH_BYTES, MESSAGE_BYTES, batches_for, scratch

PAGE_BYTES = 4096
MANY_TOPICS = 16
ONE_TOPIC = "one topic"
ONE_SIZE = "one size"
SYNCED_SHARE = 64  # with fsync=always and fewer connections, a row pushes less


# -- small pushes -------------------------------------------------------------------------------


@contextmanager
def small_pushes(
    setting: Setting, shape: Load, fsync: str, beside: tuple[str, ...]
) -> Iterator[Measures]:
    """Pushes for a fixed time. With several topics or sizes, logd is also measured with one."""
    load = shape.lasting(setting.sizes.seconds, setting.sizes.warmup_s)
    with scratch(setting) as place, ExitStack() as stack:
        ours = stack.enter_context(peers.logd(place, fsync))
        measures: dict[str, Measure | Skip] = {LOGD: lambda: push(setting, "logd", ours, load)}
        if load.topics > 1:
            single = replace(load, topics=1)
            measures[ONE_TOPIC] = lambda: push(setting, "logd", ours, single)
        if load.any_size:
            even = replace(load, any_size=False)
            measures[ONE_SIZE] = lambda: push(setting, "logd", ours, even)
        for name in beside:
            measures[name] = pushing(setting, stack, place, name, load, fsync)
        yield measures


@contextmanager
def policies(setting: Setting, shape: Load, fsync: str) -> Iterator[Measures]:
    """The same pushes with another fsync policy, compared with the default one."""
    load = shape.lasting(setting.sizes.seconds, setting.sizes.warmup_s)
    with (
        scratch(setting) as place,
        peers.logd(place / "this", fsync) as ours,
        peers.logd(place / "that", "interval") as usual,
    ):
        yield {
            LOGD: lambda: push(setting, "logd", ours, load),
            "interval": lambda: push(setting, "logd", usual, load),
        }


@contextmanager
def pages(setting: Setting, connections: int, fsync: str) -> Iterator[Measures]:
    """4 KB batches. Servers without batches get the same bytes as one message."""
    shape = Load(connections=connections, message_bytes=MESSAGE_BYTES, batch_bytes=PAGE_BYTES)
    load = shape.lasting(setting.sizes.seconds, setting.sizes.warmup_s)
    writes = max(1, int(setting.sizes.push_bytes / 8) // PAGE_BYTES)
    group = connections if fsync == "always" else 0
    beside = ("redis",) if fsync == "always" else ("redis", "nats")

    def write() -> Sample:
        count = writes // 8 if group else writes
        return _written(setting, count, PAGE_BYTES, group)

    with scratch(setting) as place, ExitStack() as stack:
        measures: dict[str, Measure | Skip] = {}
        for name in (LOGD, *beside):
            rate = pushing(setting, stack, place, name, load, fsync)
            measures[name] = rate if isinstance(rate, Skip) else _in_bytes(rate)
        yield {**measures, _writes(group): write, "sink": partial(_sink, setting, load, group)}


def _in_bytes(rate: Measure) -> Measure:
    return lambda: throughput(rate())


# -- large pushes -------------------------------------------------------------------------------


@contextmanager
def large_pushes(setting: Setting, connections: int, fsync: str) -> Iterator[Measures]:
    """Until all pushes are acknowledged, compared with a write loop and a bare server in C.

    Each measurement uses a new server and a new file, to start without its own page cache. With
    fsync=always, the write loop syncs after as many writes as there are connections: groups of logd
    cannot be larger, since each connection waits for its reply.
    """
    group = connections if fsync == "always" else 0
    share = min(1, group / SYNCED_SHARE) if group else 1  # syncs are slow
    load = batches_for(
        int(setting.sizes.push_bytes * share), replace(BATCH, connections=connections)
    )

    def pushed() -> Sample:
        with scratch(setting) as place, peers.logd(place, fsync) as peer:
            return throughput(push(setting, "logd", peer, load))

    def write() -> Sample:
        return _written(setting, load.count, load.body_bytes, group)

    write()  # in a virtual machine, the first use of a page is slow
    yield {LOGD: pushed, _writes(group): write, "sink": partial(_sink, setting, load, group)}


@contextmanager
def large_pushes_to_disk(setting: Setting) -> Iterator[Measures]:
    """The same, including the time until everything is on disk."""
    load = batches_for(setting.sizes.push_bytes)

    def pushed() -> Sample:
        with scratch(setting) as place, peers.logd(place, "interval") as peer:
            facts = setting.programs.load("logd", peer.port, load)
            start = time.perf_counter()
            os.sync()
            seconds = facts["seconds"] + time.perf_counter() - start
            return Sample(load.count * load.body_bytes / seconds / 1e6, facts)

    def write() -> Sample:
        return _written(setting, load.count, load.body_bytes, load.count)

    write()
    yield {LOGD: pushed, "writev+sync": write}


def _sink(setting: Setting, load: Load, group: int) -> Sample:
    with (
        scratch(setting) as place,
        peers.sink(place, setting.programs, load, synced=bool(group)) as peer,
    ):
        return throughput(push(setting, "logd", peer, load))


def _writes(group: int) -> str:
    return "writev+fdatasync" if group else "writev"


def _written(setting: Setting, count: int, body_bytes: int, group: int) -> Sample:
    with scratch(setting) as place:
        facts = setting.programs.writev(place / "plain", count, body_bytes, group=group)
    return Sample(facts["mb_per_second"], facts)


# -- the rows -----------------------------------------------------------------------------------


def _shape(connections: int, depth: int, topics: int = 1, any_size: bool = False) -> Load:
    return Load(connections, depth, MESSAGE_BYTES, topics=topics, any_size=any_size)


def _describe(load: Load, fsync: str) -> str:
    pace = "one at a time" if load.depth == 1 else f"{load.depth} in flight"
    topics = f", {load.topics} topics" if load.topics > 1 else ""
    size = "50 to 150 B" if load.any_size else "100 B"
    return f"PUSH {size}, {_clients(load.connections)}, {pace}{topics}{_policy(fsync)}"


def small(
    connections: int, depth: int, *beside: str, fsync: str = "interval", bound: float | None = None,
    topics: int = 1, any_size: bool = False, full: bool = False,
) -> Row:  # fmt: skip
    load = _shape(connections, depth, topics, any_size)
    ending = f"x{topics}" if topics > 1 else "-any" if any_size else ""
    return Row(
        f"{_kind(fsync, 'small')}-{connections}x{depth}{ending}",
        _describe(load, fsync),
        "/s",
        partial(small_pushes, shape=load, fsync=fsync, beside=beside),
        Target(bound, beside="redis") if bound else None,
        ceiling="echo" if "echo" in beside else None,
        full=full,
    )


def policy(fsync: str, connections: int, depth: int, *, full: bool = False) -> Row:
    load = _shape(connections, depth)
    opening = partial(policies, shape=load, fsync=fsync)
    return Row(f"{fsync}-{connections}x{depth}", _describe(load, fsync), "/s", opening, full=full)


def page(connections: int, fsync: str, *, full: bool = False) -> Row:
    name = f"{_kind(fsync)}-4k{_ending(connections)}"
    what = f"PUSH 4 KB batches, {_clients(connections)}{_policy(fsync)}"
    opening = partial(pages, connections=connections, fsync=fsync)
    return Row(name, what, "MB/s", opening, ceiling="sink", full=full)


def large(connections: int, fsync: str, bound: float | None = None, *, full: bool = False) -> Row:
    name = f"{_kind(fsync)}-64k{_ending(connections)}"
    what = f"PUSH {BATCH_BYTES // 1024} KB batches, {_clients(connections)}{_policy(fsync)}"
    opening = partial(large_pushes, connections=connections, fsync=fsync)
    beside = _writes(connections if fsync == "always" else 0)
    target = Target(bound, beside=beside) if bound else None
    more = (Target(0.7, beside="sink"),) if fsync == "interval" and bound else ()
    return Row(name, what, "MB/s", opening, target, more, ceiling="sink", full=full)


def _kind(fsync: str, usual: str = "push") -> str:
    return usual if fsync == "interval" else fsync


def _ending(connections: int) -> str:
    return "" if connections == 16 else f"-{connections}"


def _clients(connections: int) -> str:
    return "1 connection" if connections == 1 else f"{connections} connections"


def _policy(fsync: str) -> str:
    return "" if fsync == "interval" else f", fsync {fsync}"


def _rest_of_the_grid() -> Iterator[Row]:
    """The combinations that are not in the usual rows."""
    usual = {row.name for row in USUAL}
    for connections, depth, topics, fsync in product(
        (1, 16, 256), (1, 100), (1, MANY_TOPICS), ("interval", "always")
    ):
        row = small(connections, depth, "redis", fsync=fsync, topics=topics, full=True)
        if row.name not in usual:
            yield row
    for connections, fsync in product((1, 16, 256), ("interval", "always", "never")):
        if (row := large(connections, fsync, full=True)).name not in usual:
            yield row
    for connections, fsync in product((1, 16, 256), ("interval", "always")):
        if (row := page(connections, fsync, full=True)).name not in usual:
            yield row
    for fsync in ("never", "batches"):
        yield policy(fsync, 16, 100, full=True)


TO_DISK = Target(0.85, beside="writev+sync")
USUAL = (
    large(16, "interval", 0.9),
    Row("push-64k-disk", "the same, until it is on disk", "MB/s", large_pushes_to_disk, TO_DISK),
    large(16, "always", 0.85),
    page(16, "interval"),
    page(16, "always"),
    small(1, 1, "redis", "nats", "echo", bound=1.0),
    small(1, 100, "redis", "nats", "echo", bound=1.2),
    small(16, 1, "redis", "nats", "rabbitmq", "echo", bound=1.1),
    small(16, 100, "redis", "nats", "rabbitmq", "echo", bound=1.3),
    small(256, 1, "redis", "nats", "echo", bound=1.0),
    small(16, 1, "redis", any_size=True),
    small(16, 100, "redis", any_size=True),
    small(16, 1, "redis", fsync="always", bound=1.0),
    small(16, 100, "redis", fsync="always", bound=1.2),
    small(16, 1, "redis", "nats", topics=MANY_TOPICS, bound=0.9),
    small(16, 100, "redis", "nats", topics=MANY_TOPICS, bound=1.5),
    policy("never", 16, 1),
    policy("batches", 16, 1),
)
ROWS = (*USUAL, *_rest_of_the_grid())
