"""Rows about Python clients: logd's, compared with redis-py, nats-py and rstream.

Each client runs in its own process, and each server is started for the row. Other clients get fewer
messages, since they are slower; messages per second are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from bench import peers, rabbitmq
from bench.measure import LOGD, Measure, Measures, Row, Sample, Setting, Skip, Target
from bench.processes import python, run_json
from bench.servers import started
from bench.workloads import EVEN_BATCH, MESSAGE_BYTES, batches_for, scratch

TOPIC = "clients"

BESIDE = (Target(40.0, beside="redis-py"), Target(100.0, beside="nats-py"))


@dataclass(frozen=True, slots=True)
class Other:
    """A client of another server, and the modes of its program, by measurement."""

    module: str
    library: str  # the Python package
    missing: Callable[[], str | None]  # why the server cannot run
    serve: Callable[[Path], peers.Serving]
    write_modes: Mapping[str, str]
    read_modes: Mapping[str, str]
    fill_mode: str

    def why_not(self) -> str | None:
        if find_spec(self.library) is None:
            return f"the Python package {self.library} is not installed; `make bench` installs it"
        return self.missing()


OTHERS = (
    Other(
        "redis_client",
        "redis",
        peers.redis_missing,
        partial(peers.redis, appendfsync="everysec"),
        write_modes={"redis-py": "write", "redis-py hiredis": "write-hiredis"},
        read_modes={"redis-py": "read", "redis-py hiredis": "read-hiredis"},
        fill_mode="fill-hiredis",
    ),
    Other(
        "nats_client",
        "nats",
        peers.nats_missing,
        peers.nats,
        write_modes={"nats-py": "write", "nats-py core": "write-core"},
        read_modes={"nats-py": "read", "nats-py push": "read-push"},
        fill_mode="write-core",
    ),
    Other(
        "rabbit_client",
        "rstream",
        rabbitmq.missing,
        rabbitmq.rabbitmq,
        write_modes={"rstream": "write"},
        read_modes={"rstream": "read"},
        fill_mode="fill",
    ),
)


@contextmanager
def clients(setting: Setting, mode: str) -> Iterator[Measures]:
    """Writers use a new topic for each turn. Readers read a topic that is written before."""
    is_reading, turns = mode != "write", count()
    with scratch(setting) as place, ExitStack() as stack:
        ours = stack.enter_context(peers.logd(place, "interval"))
        if is_reading:
            total_bytes = setting.sizes.client_messages * MESSAGE_BYTES + EVEN_BATCH.batch_bytes
            setting.programs.load("logd", ours.port, batches_for(total_bytes, EVEN_BATCH))

        def measure() -> Sample:
            topic = EVEN_BATCH.topic if is_reading else f"{TOPIC}-{next(turns)}"
            messages = setting.sizes.client_messages
            return run_client(setting, "python_client", mode, ours.address, topic, messages)

        measures: dict[str, Measure | Skip] = {LOGD: measure}
        for other in OTHERS:
            measures |= _beside(setting, other, place, stack, is_reading)
        yield measures


def _beside(
    setting: Setting, other: Other, place: Path, stack: ExitStack, is_reading: bool
) -> dict[str, Measure | Skip]:
    """The measurements of another client, after writing the topic that it reads."""
    modes = other.read_modes if is_reading else other.write_modes
    peer = started(other.why_not, partial(other.serve, place), stack)
    if isinstance(peer, Skip):
        return dict.fromkeys(modes, peer)
    address, messages = peer.address, setting.sizes.peer_messages
    if is_reading:
        run_client(setting, other.module, other.fill_mode, address, TOPIC, messages)
    return {
        name: partial(run_client, setting, other.module, mode, address, TOPIC, messages)
        for name, mode in modes.items()
    }


def run_client(
    setting: Setting, module: str, mode: str, address: str, topic: str, messages: int
) -> Sample:
    """Run a program of this package, see client_task."""
    words = (f"bench.{module}", mode, address, topic, messages, MESSAGE_BYTES, setting.seed)
    facts = run_json([python(), "-m", *map(str, words)])
    return Sample(facts["per_second"], facts)


def _row(name: str, what: str, mode: str, bound: float) -> Row:
    return Row(f"client-{name}", what, "/s", partial(clients, mode=mode), Target(bound), BESIDE)


ROWS = (
    _row("writer", "Writer, a call per message", "write", 3e6),
    _row("reader", "Reader, message by message", "read", 8e6),
    _row("batches", "Reader, batch by batch", "batches", 8e6),
)
