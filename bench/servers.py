"""The servers that take pushes from the generator, by the names that the rows call them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import peers, rabbitmq
from bench.measure import LOGD, Measure, Sample, Setting, Skip
from bench.processes import BenchError
from bench.programs import Load

# What Redis calls the policy that comes nearest. The others cannot be told to sync with each push.
APPENDFSYNC = {"never": "no", "interval": "everysec", "always": "always"}

Serve = Callable[[Path, str, Load], AbstractContextManager[peers.Peer]]


@dataclass(frozen=True, slots=True)
class Server:
    protocol: str  # what the generator speaks to it
    serve: Serve  # in this directory, with this fsync policy, for this load
    missing: Callable[[], str | None] = lambda: None


SERVERS = {
    LOGD: Server("logd", lambda place, fsync, _: peers.logd(place, fsync)),
    "redis": Server(
        "redis",
        lambda place, fsync, _: peers.redis(place, APPENDFSYNC[fsync]),
        peers.redis_missing,
    ),
    "nats": Server("nats", lambda place, *_: peers.nats(place), peers.nats_missing),
    "rabbitmq": Server("rabbitmq", lambda place, *_: rabbitmq.rabbitmq(place), rabbitmq.missing),
    "echo": Server("echo", lambda place, _, load: peers.echo(place, load.push_bytes)),
}


def as_entry(load: Load, protocol: str) -> Load:
    """The same bytes for a server that knows no batches: as one message."""
    if protocol in ("logd", "echo") or not load.batch_bytes:
        return load
    return load.with_one_message()


def pushing(
    setting: Setting, stack: ExitStack, place: Path, name: str, load: Load, fsync: str
) -> Measure | Skip:
    """Start the server called `name` and hand out what drives it; or say why it is left out."""
    server = SERVERS[name]
    peer = started(server.missing, partial(server.serve, place, fsync, load), stack)
    if isinstance(peer, Skip):
        return peer
    return lambda: push(setting, server.protocol, peer, as_entry(load, server.protocol))


def started(
    missing: Callable[[], str | None],
    serve: Callable[[], AbstractContextManager[peers.Peer]],
    stack: ExitStack,
) -> peers.Peer | Skip:
    """Another's server; one that does not start is left out, and logd's figure still counts."""
    if reason := missing():
        return Skip(reason)
    try:
        return stack.enter_context(serve())
    except BenchError as error:
        return Skip(f"it did not start: {error}")


def push(setting: Setting, protocol: str, peer: peers.Peer, load: Load) -> Sample:
    facts = setting.programs.load(protocol, peer.port, load)
    if protocol == "echo" and facts["request_bytes"] != load.push_bytes:
        raise BenchError("the echo counts requests of another length than the generator sends")
    return Sample(facts["per_second"], facts)


def throughput(sample: Sample) -> Sample:
    """The same, with megabytes of bodies per second as its value."""
    return Sample(sample.facts["mb_per_second"], sample.facts)
