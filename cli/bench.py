"""`log-cli bench`: measure the throughput and latency of the daemon from this machine.

Each connection is a thread that pushes one batch at a time and waits for the reply, so the latency
is that of a client that waits. With many small batches the result is limited by this program.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cli.arguments import connection
from cli.arguments.topic_names import topic_argument
from cli.output.number_text import bytes_text, count_text
from cli.output.progress import Advance, bar, is_bar_visible
from cli.output.stdout import Quiet, ReportFormat, ReportOutput, notice, print_report
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.wire.addresses import Target

Topic = Annotated[str | None, topic_argument("Topic to push to. [default: a new topic]")]
Messages = Annotated[
    int, typer.Option(min=1, max=10**10, metavar="N", help="Total number of messages.")
]
Size = Annotated[
    int, typer.Option(min=0, max=8 << 20, metavar="N", help="Size of a message in bytes.")
]
BatchBytes = Annotated[
    int, typer.Option(min=1, max=8 << 20, metavar="N", help="Size of a batch in bytes.")
]
Connections = Annotated[
    int, typer.Option(min=1, max=256, metavar="N", help="Number of connections.")
]
ReadBack = Annotated[
    bool, typer.Option("--read", help="Then read all messages back on each connection.")
]


PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)


class Latencies(Counter[float]):
    """The number of requests by their seconds, rounded to three digits to save memory."""

    def add(self, seconds: float) -> None:
        self[float(f"{seconds:.3g}")] += 1

    def percentiles_ms(self) -> dict[str, float]:
        """The latency that this percentage of the requests did not exceed; p100 is the maximum."""
        return {f"p{percent:g}": round(self._within(percent) * 1000, 4) for percent in PERCENTILES}

    def _within(self, percent: float) -> float:
        wanted = self.total() * percent / 100
        reached = zip(sorted(self), accumulate(self[one] for one in sorted(self)), strict=True)
        return next((seconds for seconds, count in reached if count >= wanted), 0.0)


class Measured(NamedTuple):
    """The amount of work, its duration, and the latency of the requests."""

    messages: int
    bytes: int
    seconds: float = 0.0
    latencies: Latencies = Latencies()

    def as_object(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 6),
            "messages_per_s": round(self.messages / self.seconds, 1),
            "bytes_per_s": round(self.bytes / self.seconds, 1),
        }


def bench(
    ctx: typer.Context,
    topic: Topic = None,
    messages: Messages = 1_000_000,
    size: Size = 100,
    batch_bytes: BatchBytes = 65_536,
    connections: Connections = 4,
    read: ReadBack = False,
    output: ReportOutput = ReportFormat.text,
    quiet: Quiet = False,
    host: connection.Host = None,
) -> None:
    """Measure how fast the daemon accepts messages.

    Prints the throughput and the latency of pushes. A topic that it creates is not deleted.

    \b
    log-cli bench --messages 200000 --size 500 --read
    """
    address = connection.address(ctx, host)
    name = topic or f"bench-{os.urandom(4).hex()}"
    is_shown = is_bar_visible(quiet)
    shares = batches_of(messages, max(1, batch_bytes // (size + 1)), connections)
    with bar(f"pushing {name}", messages, is_shown=is_shown) as advance:
        pushed = _measure([_pusher(address, name, share, size, advance) for share in shares])
    got = None
    if read:
        first = _first_offset(address, name, messages)
        with bar(f"reading {name}", messages * connections, is_shown=is_shown) as advance:
            one = _reader(address, name, first, messages, advance)
            got = _measure([one] * connections)
    print_report(output, [_as_object(name, pushed, got)], _lines(name, pushed, got))
    if topic is None:
        notice(f"topic {name} was not deleted", quiet)


def batches_of(messages: int, per_batch: int, connections: int) -> list[list[tuple[int, int]]]:
    """For each connection (number of batches, messages per batch); in total `messages`."""
    shares = []
    for i in range(connections):
        share = messages // connections + (i < messages % connections)
        full, rest = divmod(share, per_batch)
        shares.append([(count, of) for count, of in ((full, per_batch), (bool(rest), rest)) if of])
    return shares


Work = Callable[[], Measured]


def _measure(works: list[Work]) -> Measured:
    """Run everything in parallel; the duration is from the first start to the last end."""
    import threading

    done: list[Measured] = []
    failed: list[BaseException] = []

    def run(work: Work) -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001  raised below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    start = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    seconds = perf_counter() - start
    latencies = Latencies()
    for one in done:
        latencies.update(one.latencies)
    messages, size = sum(one.messages for one in done), sum(one.bytes for one in done)
    return Measured(messages, size, seconds, latencies)


def _pusher(
    address: Target, topic: str, share: list[tuple[int, int]], size: int, advance: Advance
) -> Work:
    def push() -> Measured:
        from logd.client.client import Client

        latencies, pushed = Latencies(), 0
        with Client(address) as client:
            for batches, count in share:
                messages = [b"x" * size] * count
                for _ in range(batches):
                    start = perf_counter()
                    client.push(topic, messages)
                    latencies.add(perf_counter() - start)
                    pushed += count
                    advance(count)
        return Measured(pushed, pushed * size, latencies=latencies)

    return push


def _first_offset(address: Target, topic: str, messages: int) -> int:
    """The offset of the newest `messages` messages; other clients may have pushed, too."""
    from logd.client.client import Client

    with Client(address) as client:
        (info,) = client.topics(topic)
        return max(info.first, info.next - messages)


def _reader(address: Target, topic: str, first: int, messages: int, advance: Advance) -> Work:
    def read() -> Measured:
        from logd.client.reader import Reader

        size = got = 0
        with Reader(address, topic, start=first, limit=messages) as reader:
            for batch in reader.batches():
                got += len(batch.messages)
                size += sum(map(len, batch.messages))
                advance(len(batch.messages))
        return Measured(got, size)

    return read


def _lines(topic: str, pushed: Measured, got: Measured | None) -> list[str]:
    lines = [f"topic    {topic}", f"push     {_rate(pushed)}"]
    times = pushed.latencies.percentiles_ms().items()
    lines.append("latency  " + "  ".join(f"{name} {ms:g} ms" for name, ms in times))
    if got is not None:
        lines.append(f"read     {_rate(got)}")
    return lines


def _rate(measured: Measured) -> str:
    return (
        f"{count_text(measured.messages / measured.seconds)} messages/s,"
        f" {bytes_text(measured.bytes / measured.seconds)}/s"
        f"  ({counted(measured.messages, 'message')} in {measured.seconds:.2f} s)"
    )


def _as_object(topic: str, pushed: Measured, got: Measured | None) -> dict[str, object]:
    push = {**pushed.as_object(), "latency_ms": pushed.latencies.percentiles_ms()}
    return {"topic": topic, "push": push, "read": got.as_object() if got else None}
