"""The servers for pushes of the load generator, by the names that rows use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import peers, rabbitmq
from bench.measure import LOGD, Measure, Sample, Setting, Skip
from bench.processes import BenchError
from bench.programs import Load

# The nearest fsync policies of Redis. Other servers cannot sync with each push.
APPENDFSYNC = {"never": "no", "interval": "everysec", "always": "always"}


@dataclass(frozen=True, slots=True)
class Server:
    protocol: str  # of the load generator
    serve: Callable[[Path, str, Load], peers.Serving]  # the directory, the fsync policy, the load
    missing: Callable[[], str | None] = lambda: None


SERVERS = {
    LOGD: Server("logd", lambda place, fsync, _: peers.logd(place, fsync)),
    "redis": Server(
        "redis", lambda place, fsync, _: peers.redis(place, APPENDFSYNC[fsync]), peers.redis_missing
    ),
    "nats": Server("nats", lambda place, *_: peers.nats(place), peers.nats_missing),
    "rabbitmq": Server("rabbitmq", lambda place, *_: rabbitmq.rabbitmq(place), rabbitmq.missing),
    "echo": Server("echo", lambda place, _, load: peers.echo(place, load.push_bytes)),
}


def as_entry(load: Load, protocol: str) -> Load:
    """The same bytes as one message, for servers without batches."""
    if protocol in ("logd", "echo") or not load.batch_bytes:
        return load
    return load.with_one_message()


def pushing(
    setting: Setting, stack: ExitStack, place: Path, name: str, load: Load, fsync: str
) -> Measure | Skip:
    """Start the server `name` and return its measurement, or the reason why it is skipped."""
    protocol, peer = SERVERS[name].protocol, start_server(name, place, fsync, load, stack)
    if isinstance(peer, Skip):
        return peer
    return lambda: push(setting, protocol, peer, as_entry(load, protocol))


def start_server(
    name: str, place: Path, fsync: str, load: Load, stack: ExitStack
) -> peers.Peer | Skip:
    server = SERVERS[name]
    serve = partial(server.serve, place, fsync, load)
    if name == LOGD:
        return stack.enter_context(serve())  # if it fails, so does the row
    return started(server.missing, serve, stack)


def started(
    missing: Callable[[], str | None],
    serve: Callable[[], peers.Serving],
    stack: ExitStack,
) -> peers.Peer | Skip:
    """Start another server; if it fails, it is skipped, and logd is still measured."""
    if reason := missing():
        return Skip(reason)
    try:
        return stack.enter_context(serve())
    except BenchError as error:
        return Skip(f"the server did not start: {error}")


def push(setting: Setting, protocol: str, peer: peers.Peer, load: Load) -> Sample:
    facts = setting.programs.load(protocol, peer.port, load)
    if protocol == "echo" and facts["request_bytes"] != load.push_bytes:
        raise BenchError("the request length of the echo differs from that of the generator")
    return Sample(facts["per_second"], facts)


def throughput(sample: Sample) -> Sample:
    """The same sample, in megabytes of bodies per second."""
    return Sample(sample.facts["mb_per_second"], sample.facts)
