"""Rows about latency: acknowledged pushes, delivery to followers, and many followers.

`follow.c` measures latencies. It sends at a fixed rate even if replies are late, so a server that
stalls is charged for every message that should have been sent meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from bench import peers
from bench.machine import allow_connections
from bench.measure import LOGD, Measure, Measures, Point, Row, Sample, Setting, Skip, Target
from bench.processes import python, run_json
from bench.programs import Follow, Load
from bench.servers import SERVERS, start_server
from bench.workloads import MESSAGE_BYTES, SETTLE_S, measure_under_load, scratch

PACE = 1000  # pushes per second; the server is idle nine tenths of the time
LATENCY_TURNS = 4  # tail latencies need more messages than rates
FAN = "fan"


@contextmanager
def fan_out(setting: Setting, followers: int) -> Iterator[Measures]:
    """Each message is pushed when all followers have received the previous one."""
    allow_connections(followers)
    with scratch(setting) as place, ExitStack() as stack:
        topics = _names(FAN)

        def measure(protocol: str, peer: peers.Peer) -> Sample:
            facts = setting.programs.follow(protocol, peer.port, shape(next(topics)))
            return Sample(facts["per_second"], {**facts, **_percentiles(facts, "follow")})

        def shape(topic: str) -> Follow:
            return Follow(topic, followers, setting.sizes.seconds, setting.sizes.warmup_s)

        measures: dict[str, Measure | Skip] = {}
        for name in (LOGD, "redis"):
            peer = start_server(name, place, "interval", Load(), stack)
            measures[name] = peer if isinstance(peer, Skip) else partial(measure, name, peer)
        bare = stack.enter_context(peers.echo(place, shape(f"{FAN}0000").push_bytes, "fan"))
        measures[FAN] = partial(measure, "echo", bare)
        yield measures


@contextmanager
def latencies(
    setting: Setting, of: str, fsync: str, loaded: bool, beside: tuple[str, ...]
) -> Iterator[Measures]:
    """`of` is "ack", or "follow" for delivery to one follower. An echo measures round trips."""
    with scratch(setting) as place, ExitStack() as stack:
        measures: dict[str, Measure | Skip] = {}
        for name in (LOGD, *beside):
            followers = 1 if of == "follow" and name != "echo" else 0
            shape = _paced(setting, followers)
            peer = start_server(name, place, fsync, Load(topic=shape("0000").topic), stack)
            if isinstance(peer, Skip):
                measures[name] = peer
                continue
            kind = "ack" if name == "echo" else of
            measure: Measure = partial(_latency, setting, name, peer, shape, _names(""), kind)
            if loaded:
                measure = partial(_under_load, setting, name, peer, measure)
            measures[name] = measure
        yield measures


@contextmanager
def beside_load(setting: Setting, mode: str) -> Iterator[Measures]:
    """A steady client of another topic, alone and while 16 connections push, fsync=always."""
    seconds = 2 * setting.sizes.seconds
    load = Load(connections=16, message_bytes=MESSAGE_BYTES, seconds=seconds + 2 * SETTLE_S)
    with scratch(setting) as place, peers.logd(place, "always") as peer:

        def alone() -> Sample:
            facts = run_json([python(), "-m", "bench.steady", mode, peer.address, str(seconds)])
            return Sample(facts["p99_us"], facts)

        loaded = partial(measure_under_load, setting, "logd", peer.port, load, alone)
        yield {LOGD: loaded, "alone": alone}


Shape = Callable[[str], Follow]


def _paced(setting: Setting, followers: int) -> Shape:
    seconds = LATENCY_TURNS * setting.sizes.seconds

    def shape(turn: str) -> Follow:
        return Follow(f"paced{turn}", followers, seconds, setting.sizes.warmup_s, PACE)

    return shape


def _latency(
    setting: Setting, name: str, peer: peers.Peer, shape: Shape, turns: Iterator[str], kind: str
) -> Sample:
    facts = setting.programs.follow(name, peer.port, shape(next(turns)))
    percentiles = _percentiles(facts, kind)
    return Sample(percentiles["p50_us"], {**facts, **percentiles})


def _under_load(setting: Setting, name: str, peer: peers.Peer, measure: Measure) -> Sample:
    """While 16 connections push to another topic as fast as possible."""
    seconds = LATENCY_TURNS * setting.sizes.seconds + setting.sizes.warmup_s + 2 * SETTLE_S
    load = Load(16, 1, MESSAGE_BYTES, topic="crowd").lasting(seconds, 0)
    return measure_under_load(setting, SERVERS[name].protocol, peer.port, load, measure)


def _names(prefix: str) -> Iterator[str]:
    """A new topic for each turn; all names have the same length."""
    return (f"{prefix}{turn:04d}" for turn in range(10000))


def _percentiles(facts: Mapping[str, float], kind: str) -> dict[str, float]:
    return {f"{p}_us": facts[f"{kind}_{p}_us"] for p in ("p50", "p99", "p999")}


def _fan(followers: int, bound: float) -> Row:
    return Row(
        f"follow-{followers}",
        f"deliveries to {followers} follower{'s' if followers > 1 else ''}, in lockstep",
        "/s",
        partial(fan_out, followers=followers),
        Target(bound, beside="redis"),
        ceiling=FAN,
        point=Point("followers", "", followers, "followers"),
    )


def _time(
    name: str, what: str, of: str, *beside: str, fsync: str = "interval", loaded: bool = False,
    bound: float | None = None, more: tuple[Target, ...] = (),
) -> Row:  # fmt: skip
    opening = partial(latencies, of=of, fsync=fsync, loaded=loaded, beside=beside)
    target = Target(bound, at_most=True, beside="redis") if bound else None
    return Row(f"time-{name}", what, "µs", opening, target, more)


def _steady(mode: str, what: str) -> Row:
    target = Target(3.0, at_most=True, beside="alone")
    return Row(f"always-{mode}", what, "µs", partial(beside_load, mode=mode), target)


ALWAYS = "p50 of a push, alone, fsync always"
FOLLOW = "p50 from push to follower, alone; the echo's is its round trip"
ROUND_TRIP = Target(2.0, at_most=True, beside="echo")
ROWS = (
    *(_fan(followers, bound) for followers, bound in ((1, 1.1), (100, 1.5), (1000, 1.5))),
    _time("push", "p50 of an acknowledged push, alone", "ack", "redis", "echo", bound=1.1),
    _time("push-load", "the same, while 16 connections push", "ack", "redis", loaded=True),
    _time("push-always", ALWAYS, "ack", "redis", fsync="always", bound=1.1),
    _time("follow", FOLLOW, "follow", "redis", "echo", bound=1.0, more=(ROUND_TRIP,)),
    _time("follow-load", "the same, while 16 connections push", "follow", "redis", loaded=True),
    _steady("writer", "p99 of a steady writer while 16 push, fsync always"),
    _steady("reader", "p99 of a steady reader, the same load"),
)
