"""Rows about reads: a whole topic, and single messages at random offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bench import peers
from bench.measure import LOGD, Measure, Measures, Row, Sample, Setting, Skip, Target
from bench.processes import BenchError
from bench.programs import Load
from bench.workloads import BATCH, MESSAGE_BYTES, batches_for, scratch

READ_BYTES = 8 << 20  # per READ; the server may send less
MESSAGES = 1_000_000  # the generator reads offsets from 100,000 on: six digits each
# 40 messages: the reply contains the whole batch of a message.
SMALL_BATCH = Load(16, 1, MESSAGE_BYTES, 4000, topic="random")

Ask = Callable[[str, int], Sample]


@contextmanager
def whole_topic(setting: Setting) -> Iterator[Measures]:
    """`sendfile` sends the same files that the server reads."""
    with scratch(setting) as place, peers.logd(place, "interval") as peer:
        setting.programs.load("logd", peer.port, batches_for(setting.sizes.topic_bytes))
        files = peer.partitions(BATCH.topic)
        stored_bytes = sum(file.stat().st_size for file in files)

        def drain() -> Sample:
            facts = setting.programs.drain(peer.port, BATCH.topic, READ_BYTES)
            if facts["bytes"] != stored_bytes:
                raise BenchError(f"read {facts['bytes']} bytes of a topic of {stored_bytes}")
            return Sample(facts["mb_per_second"], facts)

        def send() -> Sample:
            facts = setting.programs.sendfile(files)
            return Sample(facts["mb_per_second"], facts)

        drain()  # reads the topic into the page cache
        yield {LOGD: drain, "sendfile": send}


@contextmanager
def random_messages(setting: Setting) -> Iterator[Measures]:
    """Single messages by offset, from 16 connections, in a topic of a million."""
    shape = Load(16, 1, MESSAGE_BYTES, topic=SMALL_BATCH.topic)
    reading = shape.lasting(setting.sizes.seconds, setting.sizes.warmup_s)

    def ask(protocol: str, port: int) -> Sample:
        facts = setting.programs.load(protocol, port, reading)
        return Sample(facts["per_second"], facts)

    with scratch(setting) as place, ExitStack() as stack:
        ours = stack.enter_context(peers.logd(place, "interval"))
        stored_bytes = _fill(setting, ours)
        request = f"READ {reading.topic} 100000 1\r\n"
        bare = stack.enter_context(peers.echo(place, len(request), str(stored_bytes)))
        yield {
            LOGD: lambda: ask("logd-read", ours.port),
            "redis": _redis(setting, stack, place, ask_of=ask),
            "echo": lambda: ask("logd-read", bare.port),
        }


def _fill(setting: Setting, peer: peers.Peer) -> int:
    """Write the topic, one batch at a time so that none are merged; the size of a stored batch."""
    count = MESSAGES // SMALL_BATCH.push_messages
    one = replace(SMALL_BATCH, connections=1, count=count)
    setting.programs.load("logd", peer.port, one)
    stored = sum(file.stat().st_size for file in peer.partitions(one.topic))
    return stored // count


def _redis(setting: Setting, stack: ExitStack, place: Path, ask_of: Ask) -> Measure | Skip:
    if reason := peers.redis_missing():
        return Skip(reason)
    theirs = stack.enter_context(peers.redis(place, "everysec"))
    filling = Load(16, 100, MESSAGE_BYTES, topic=SMALL_BATCH.topic, count=MESSAGES)
    setting.programs.load("redis-numbered", theirs.port, filling)
    return lambda: ask_of("redis-read", theirs.port)


ROWS = (
    Row("read", "READ a whole topic", "MB/s", whole_topic, Target(0.85, beside="sendfile")),
    Row(
        "read-random",
        "READ one message of a million",
        "/s",
        random_messages,
        Target(0.8, beside="redis"),
        ceiling="echo",
    ),
)
