"""Rows about Python clients: logd's, compared with redis-py, nats-py and rstream.

Each client runs in its own process, and each server is started for the row. Other clients get fewer
messages, since they are slower; messages per second are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from bench import peers, rabbitmq
from bench.measure import LOGD, Contestants, Measure, Row, Sample, Setting, Skip, Target
from bench.processes import python, run_json
from bench.servers import started
from bench.workloads import BATCH, BATCH_BYTES, MESSAGE_BYTES, batches_for, scratch

TOPIC = "clients"

BESIDE = (Target(40.0, beside="redis-py"), Target(100.0, beside="nats-py"))


@dataclass(frozen=True, slots=True)
class Other:
    """A client of another server, and the modes of its program, by contestant."""

    module: str
    library: str  # the Python package
    missing: Callable[[], str | None]  # why the server cannot run
    serve: Callable[[Path], AbstractContextManager[peers.Peer]]
    write_modes: Mapping[str, str]
    read_modes: Mapping[str, str]
    fill_mode: str

    def why_not(self) -> str | None:
        if find_spec(self.library) is None:
            return f"the Python package {self.library} is not installed; `make bench` installs it"
        return self.missing()


OTHERS = (
    Other(
        "bench.redis_client",
        "redis",
        peers.redis_missing,
        partial(peers.redis, appendfsync="everysec"),
        write_modes={"redis-py": "write", "redis-py hiredis": "write-hiredis"},
        read_modes={"redis-py": "read", "redis-py hiredis": "read-hiredis"},
        fill_mode="fill-hiredis",
    ),
    Other(
        "bench.nats_client",
        "nats",
        peers.nats_missing,
        peers.nats,
        write_modes={"nats-py": "write", "nats-py core": "write-core"},
        read_modes={"nats-py": "read", "nats-py push": "read-push"},
        fill_mode="write-core",
    ),
    Other(
        "bench.rabbit_client",
        "rstream",
        rabbitmq.missing,
        rabbitmq.rabbitmq,
        write_modes={"rstream": "write"},
        read_modes={"rstream": "read"},
        fill_mode="fill",
    ),
)


@contextmanager
def writer(setting: Setting) -> Iterator[Contestants]:
    turns = iter(range(10**6))
    with scratch(setting) as place, ExitStack() as stack:
        ours = stack.enter_context(peers.logd(place, "interval"))
        contestants: dict[str, Measure | Skip] = {
            LOGD: lambda: _logd(setting, "write", ours, f"{TOPIC}-{next(turns)}")
        }
        for other in OTHERS:
            contestants |= _beside(setting, other, place, stack, fill=False)
        yield contestants


@contextmanager
def reader(setting: Setting, mode: str) -> Iterator[Contestants]:
    """All read a topic from its start. It is written before the first turn."""
    whole = replace(BATCH, batch_bytes=BATCH_BYTES // MESSAGE_BYTES * MESSAGE_BYTES)
    total_bytes = setting.sizes.client_messages * MESSAGE_BYTES + whole.batch_bytes
    with scratch(setting) as place, ExitStack() as stack:
        ours = stack.enter_context(peers.logd(place, "interval"))
        setting.programs.load("logd", ours.port, batches_for(total_bytes, whole))
        contestants: dict[str, Measure | Skip] = {
            LOGD: lambda: _logd(setting, mode, ours, whole.topic)
        }
        for other in OTHERS:
            contestants |= _beside(setting, other, place, stack, fill=True)
        yield contestants


def _beside(
    setting: Setting, other: Other, place: Path, stack: ExitStack, *, fill: bool
) -> dict[str, Measure | Skip]:
    """The contestants of another client, after writing the topic that they read."""
    modes = other.read_modes if fill else other.write_modes
    peer = started(other.why_not, partial(other.serve, place), stack)
    if isinstance(peer, Skip):
        return dict.fromkeys(modes, peer)

    def measure(mode: str) -> Sample:
        return _run(setting, other.module, mode, peer, TOPIC, setting.sizes.peer_messages)

    if fill:
        measure(other.fill_mode)
    return {name: partial(measure, mode) for name, mode in modes.items()}


def _logd(setting: Setting, mode: str, peer: peers.Peer, topic: str) -> Sample:
    messages = setting.sizes.client_messages
    return _run(setting, "bench.python_client", mode, peer, topic, messages)


def _run(
    setting: Setting, module: str, mode: str, peer: peers.Peer, topic: str, messages: int
) -> Sample:
    numbers = (messages, MESSAGE_BYTES, setting.seed)
    facts = run_json([python(), "-m", module, mode, peer.address, topic, *map(str, numbers)])
    return Sample(facts["per_second"], facts)


ROWS = (
    Row(
        "client-writer",
        "Writer, a call per message",
        "/s",
        writer,
        Target(3e6),
        BESIDE,
    ),
    Row(
        "client-reader",
        "Reader, message by message",
        "/s",
        partial(reader, mode="read"),
        Target(8e6),
        BESIDE,
    ),
    Row(
        "client-batches",
        "Reader, batch by batch",
        "/s",
        partial(reader, mode="batches"),
        Target(8e6),
        BESIDE,
    ),
)
