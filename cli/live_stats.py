"""`log-cli stats --watch`: rates, again and again; a live view where stdout is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from cli.exit_codes import OutputGone
from cli.follow import wait_while_read
from cli.message_formats import Table, json_line, stat_value, stdout
from cli.numbers import bytes_text, count_text, duration_text
from cli.stats_rates import Rates, StatsSample, TopicRate, between, chosen
from cli.terminal_text import escape_text
from logd.wire.text import counted, iso_time

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table as Grid
    from rich.text import Text

    from logd.client.client import Client
    from logd.wire.addresses import Target

MAX_ROWS = 50  # each topic that is shown costs a request
_AROUND = 7  # lines of the view that are no topic


class Moment(NamedTuple):
    """Everything there is to show of one moment."""

    address: str
    time_ms: int
    daemon: dict[str, str]
    rates: Rates
    shown: list[TopicRate]
    notes: dict[str, str]  # of topics with something to worry about


def run(address: Target, topic: str | None, every_s: float, output: Table) -> None:
    from logd.client.client import Client

    with Client(address) as client:
        if topic is not None:
            client.stats(topic)  # refused where there is no such topic
        if output is Table.text and sys.stdout is not None and sys.stdout.isatty():
            _live(client, topic, every_s)
        else:
            _lines(client, topic, every_s, output)


def _live(client: Client, topic: str | None, every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for moment in moments(client, topic, every_s, lambda: console.height - _AROUND):
            live.update(view(_escaped(moment), console), refresh=True)


def _escaped(moment: Moment) -> Moment:
    """What the daemon has said, for a terminal."""
    return moment._replace(
        daemon={name: escape_text(text) for name, text in moment.daemon.items()},
        shown=[rate._replace(topic=escape_text(rate.topic)) for rate in moment.shown],
        notes={escape_text(topic): escape_text(note) for topic, note in moment.notes.items()},
    )


def _lines(client: Client, topic: str | None, every_s: float, output: Table) -> None:
    with stdout() as out:
        for moment in moments(client, topic, every_s, lambda: MAX_ROWS):
            if output is Table.json:
                out.write(json_line(as_object(moment)))
            else:
                out.write("".join(f"{line}\n" for line in plain(moment)).encode())
            out.flush()


def moments(
    client: Client, topic: str | None, every_s: float, rows: Callable[[], int]
) -> Iterator[Moment]:
    """The first one after `every_s`: a rate needs two samples."""
    before = _sample(client, topic)
    while True:
        deadline_ms = time.time_ns() // 1_000_000 + int(every_s * 1000)
        if not wait_while_read(sys.stdout.fileno(), deadline_ms):
            raise OutputGone
        now = _sample(client, topic)
        rates = between(before, now)
        shown = chosen(rates.topics, max(1, min(rows(), MAX_ROWS)))
        notes = {rate.topic: note for rate in shown if (note := _note(client, rate.topic))}
        time_ms = time.time_ns() // 1_000_000
        yield Moment(client.address, time_ms, now.daemon, rates, shown, notes)
        before = now


def _sample(client: Client, topic: str | None) -> StatsSample:
    daemon = client.stats()
    topics = client.topics(topic or "*")
    return StatsSample(time.monotonic(), daemon, {info.topic: info for info in topics})


def _note(client: Client, topic: str) -> str:
    """What somebody should look at: damage, and partitions that wait for their delete hook."""
    from logd.errors import NotFound

    try:
        counters = client.stats(topic)
    except NotFound:
        return ""  # it went between two requests
    notes = ["faulted"] if counters.get("damages", "0") != "0" else []
    waiting = int(counters.get("expired_waiting", 0)) + (counters.get("hook_running", "-") != "-")
    if waiting:
        notes.append(f"{waiting} due")
    if counters.get("hook_failures", "0") != "0":
        notes.append(f"hook failed {counters['hook_failures']}x")
    return ", ".join(notes)


# -- for programs and pipes ---------------------------------------------------------------------


def as_object(moment: Moment) -> dict[str, object]:
    rates = moment.rates
    return {
        "time": iso_time(moment.time_ms),
        "seconds": round(rates.seconds, 3),
        **{name: stat_value(name, text) for name, text in moment.daemon.items()},
        "messages_per_s": _rounded(rates.messages_per_s),
        "bytes_per_s": _rounded(rates.bytes_per_s),
        "read_bytes_per_s": _rounded(rates.read_bytes_per_s),
        "by_topic": [
            {
                **rate._asdict(),
                "messages_per_s": _rounded(rate.messages_per_s),
                "bytes_per_s": _rounded(rate.bytes_per_s),
                "note": moment.notes.get(rate.topic),
            }
            for rate in moment.shown
        ],
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def plain(moment: Moment) -> Iterator[str]:
    """A line for the daemon, and one for each topic that moves or has something to say."""
    time_text, daemon, rates = iso_time(moment.time_ms), moment.daemon, moment.rates
    yield (
        f"{time_text} all: {_per_s(rates.messages_per_s, rates.bytes_per_s)},"
        f" {counted(int(daemon['connections']), 'connection')},"
        f" {counted(int(daemon['topics']), 'topic')},"
        f" {daemon.get('faulted_topics')} faulted"
    )
    for rate in moment.shown:
        note = moment.notes.get(rate.topic)
        if rate.messages_per_s or note:
            speed = _per_s(rate.messages_per_s, rate.bytes_per_s)
            yield f"{time_text} {rate.topic}: {speed}, next {rate.next}" + (
                f", {note}" if note else ""
            )


def _per_s(messages: float | None, size: float | None) -> str:
    counted = "-" if messages is None else count_text(messages)
    return f"{counted} messages/s, {_rate_text(size)}"


def _rate_text(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{bytes_text(bytes_per_s)}/s"


# -- for a person -------------------------------------------------------------------------------


def view(moment: Moment, console: Console) -> Group:
    from rich.console import Group
    from rich.text import Text

    hidden = len(moment.rates.topics) - len(moment.shown)
    below = f"and {counted(hidden, 'topic')} not busier; " if hidden > 0 else ""
    return Group(_head(moment), Text(), _grid(moment), Text(f"{below}Ctrl-C ends it", style="dim"))


def _head(moment: Moment) -> Text:
    """Two lines that fit into 80 columns."""
    from rich.text import Text

    daemon, rates = moment.daemon, moment.rates
    faulted = daemon.get("faulted_topics", "0")
    return Text.assemble(
        (f"logd {daemon.get('version', '')} at {moment.address}", "bold"),
        f"   up {duration_text(int(daemon.get('uptime_s', 0)))}",
        f"   fsync {daemon.get('fsync', '')}   connections {daemon.get('connections', '')}\n",
        f"in {_per_s(rates.messages_per_s, rates.bytes_per_s)}",
        f"   out {_rate_text(rates.read_bytes_per_s)}   {bytes_text(int(daemon.get('bytes', 0)))}",
        f"   topics {daemon.get('topics', '')}, ",
        (f"faulted {faulted}", "bold red" if faulted != "0" else ""),
        no_wrap=True,
        overflow="ellipsis",
    )


def _grid(moment: Moment) -> Grid:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, expand=True, padding=(0, 1, 0, 0))
    grid.add_column("TOPIC", overflow="ellipsis", no_wrap=True, ratio=1)
    for name in ("MESSAGES", "NEXT", "MESSAGES/S", "BYTES", "BYTES/S"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("NOTE", no_wrap=True, style="red")
    for rate in moment.shown:
        grid.add_row(
            rate.topic,
            count_text(rate.next - rate.first),
            str(rate.next),
            count_text(rate.messages_per_s),
            bytes_text(rate.bytes),
            _rate_text(rate.bytes_per_s),
            moment.notes.get(rate.topic, ""),
            style="" if rate.messages_per_s else "dim",
        )
    return grid
