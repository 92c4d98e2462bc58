"""`log-cli bench`: how fast is the daemon from here? A small load, for users and their machines.

Each connection is a thread that pushes one batch after the other and waits for each OK, so a
latency is what a client that waits would see. This program is Python too: with many small batches
it measures itself as much as the daemon.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cli import connection_options
from cli.completion import complete_topic
from cli.latency import Latencies
from cli.message_formats import Table, json_line, notice, stdout
from cli.message_output import Quiet
from cli.numbers import bytes_text, count_text
from cli.progress import Advance, bar, is_watched
from logd.wire.text import counted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from logd.wire.addresses import Target

Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC",
        help="Push to this topic; none: to a new one.",
        autocompletion=complete_topic,
    ),
]
Messages = Annotated[
    int, typer.Option(min=1, max=10**10, metavar="N", help="How many messages in all.")
]
Size = Annotated[int, typer.Option(min=0, max=8 << 20, metavar="N", help="Bytes of each message.")]
BatchBytes = Annotated[
    int, typer.Option(min=1, max=8 << 20, metavar="N", help="Bytes of messages per push.")
]
Connections = Annotated[
    int, typer.Option(min=1, max=256, metavar="N", help="How many push at a time.")
]
ReadBack = Annotated[bool, typer.Option("--read", help="Then read it all, on each connection.")]
Output = Annotated[Table, typer.Option("-o", "--output", help="text, or json: one object.")]


class Measured(NamedTuple):
    """What was done, in how long, and how long the single requests took."""

    messages: int
    bytes: int
    seconds: float
    latencies: Latencies

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
    output: Output = Table.text,
    quiet: Quiet = False,
    host: connection_options.Host = None,
) -> None:
    """Push as fast as the daemon takes it, and measure.

    Prints rates, and how long pushes took. Without a topic it makes one, which stays.

    \b
    log-cli bench --messages 200000 --size 500 --read
    """
    address = connection_options.address(ctx, host)
    name = topic or f"bench-{os.urandom(4).hex()}"
    shares = batches_of(messages, max(1, batch_bytes // (size + 1)), connections)
    with _bar(f"pushing {name}", messages, quiet) as advance:
        pushed = _measure([_pusher(address, name, share, size, advance) for share in shares])
    got = None
    if read:
        first = _first_offset(address, name, messages)
        with _bar(f"reading {name}", messages * connections, quiet) as advance:
            one = _reader(address, name, first, messages, advance)
            got = _measure([one] * connections)
    with stdout() as out:
        if output is Table.json:
            out.write(json_line(_as_object(name, pushed, got)))
        else:
            out.write("".join(f"{line}\n" for line in _lines(name, pushed, got)).encode())
    if topic is None:
        notice(f"topic {name} stays; its files are in the daemon's data directory", quiet)


def batches_of(messages: int, per_batch: int, connections: int) -> list[list[tuple[int, int]]]:
    """For each connection how many batches of how many messages; together exactly `messages`."""
    shares = []
    for i in range(connections):
        share = messages // connections + (i < messages % connections)
        full, rest = divmod(share, per_batch)
        shares.append([(count, of) for count, of in ((full, per_batch), (bool(rest), rest)) if of])
    return shares


def _bar(what: str, total: int, quiet: bool) -> AbstractContextManager[Advance]:
    return bar(what, total) if is_watched(quiet) else nullcontext(lambda done: None)


Work = Callable[[], Measured]


def _measure(works: list[Work]) -> Measured:
    """Do all of it at once; the time is from the first start to the last end."""
    import threading

    done: list[Measured] = []
    failed: list[BaseException] = []

    def run(work: Work) -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001  it is raised below
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
    latencies = Latencies.joined(one.latencies for one in done)
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
        return Measured(pushed, pushed * size, 0.0, latencies)

    return push


def _first_offset(address: Target, topic: str, messages: int) -> int:
    """Where the newest so many messages start; others may have pushed between them."""
    from logd.client.client import Client

    with Client(address) as client:
        (info,) = client.topics(topic)
        return max(info.first, info.next - messages)


def _reader(address: Target, topic: str, first: int, messages: int, advance: Advance) -> Work:
    def read() -> Measured:
        from logd.client.reader import Reader

        latencies, size, got = Latencies(), 0, 0
        with Reader(address, topic, start=first, limit=messages) as reader:
            for batch in reader.batches():
                got += len(batch.messages)
                size += sum(map(len, batch.messages))
                advance(len(batch.messages))
        return Measured(got, size, 0.0, latencies)

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
