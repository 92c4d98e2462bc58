"""`log-cli stats --watch`: periodic rates; a live view if stdout is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from cli.exit_codes import OutputClosed
from cli.output.number_text import bytes_text, count_text, duration_text
from cli.output.output_watch import wait_while_open
from cli.output.stats_rates import Rates, StatsSample, TopicRate, busiest, rates_between, stat_value
from cli.output.stdout import ReportFormat, stdout
from cli.output.terminal_text import escape_text
from logd.wire.text import counted, iso_time

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    from logd.client.client import Client
    from logd.wire.addresses import Target

MAX_ROWS = 50  # each topic in the view needs a request
_OTHER_LINES = 7  # of the view, besides the topics


class StatsView(NamedTuple):
    """The content of the view at one time."""

    address: str
    time_ms: int
    daemon: dict[str, str]
    rates: Rates
    shown: list[TopicRate]
    notes: dict[str, str]  # problems, by topic


def run(address: Target, topic: str | None, interval_s: float, output: ReportFormat) -> None:
    from logd.client.client import Client

    with Client(address) as client:
        if topic is not None:
            client.stats(topic)  # NotFound if the topic does not exist
        if output is ReportFormat.text and sys.stdout is not None and sys.stdout.isatty():
            _live(client, topic, interval_s)
        else:
            _lines(client, topic, interval_s, output)


def _live(client: Client, topic: str | None, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for view in views(client, topic, interval_s, lambda: console.height - _OTHER_LINES):
            live.update(render_view(_escaped(view), console), refresh=True)


def _escaped(view: StatsView) -> StatsView:
    """The same view, with the daemon's text escaped for a terminal."""
    return view._replace(
        daemon={name: escape_text(text) for name, text in view.daemon.items()},
        shown=[rate._replace(topic=escape_text(rate.topic)) for rate in view.shown],
        notes={escape_text(topic): escape_text(note) for topic, note in view.notes.items()},
    )


def _lines(client: Client, topic: str | None, interval_s: float, output: ReportFormat) -> None:
    with stdout() as out:
        for view in views(client, topic, interval_s, lambda: MAX_ROWS):
            out.write_report(output, [as_object(view)], plain(view))
            out.flush()


def views(
    client: Client, topic: str | None, interval_s: float, rows: Callable[[], int]
) -> Iterator[StatsView]:
    """A view every `interval_s`, the first one after that time: a rate needs two samples."""
    before = _sample(client, topic)
    while True:
        deadline_ms = time.time_ns() // 1_000_000 + int(interval_s * 1000)
        if not wait_while_open(sys.stdout.fileno(), deadline_ms):
            raise OutputClosed
        now = _sample(client, topic)
        rates = rates_between(before, now)
        shown = busiest(rates.topics, max(1, min(rows(), MAX_ROWS)))
        notes = {rate.topic: note for rate in shown if (note := _note(client, rate.topic))}
        time_ms = time.time_ns() // 1_000_000
        yield StatsView(client.address, time_ms, now.daemon, rates, shown, notes)
        before = now


def _sample(client: Client, topic: str | None) -> StatsSample:
    daemon = client.stats()
    topics = client.topics(topic or "*")
    return StatsSample(time.monotonic(), daemon, {info.topic: info for info in topics})


def _note(client: Client, topic: str) -> str:
    """Problems of a topic: damage, and partitions that wait for their delete hook."""
    from logd.errors import NotFound

    try:
        counters = client.stats(topic)
    except NotFound:
        return ""  # it was deleted between two requests
    notes = ["faulted"] if counters.get("damages", "0") != "0" else []
    waiting = int(counters.get("expired_waiting", 0)) + (counters.get("hook_running", "-") != "-")
    if waiting:
        notes.append(f"{waiting} due")
    if counters.get("hook_failures", "0") != "0":
        notes.append(f"hook failed {counters['hook_failures']}x")
    return ", ".join(notes)


# -- JSON and plain text ------------------------------------------------------------------------


def as_object(view: StatsView) -> dict[str, object]:
    rates = view.rates
    return {
        "time": iso_time(view.time_ms),
        "seconds": round(rates.seconds, 3),
        **{name: stat_value(name, text) for name, text in view.daemon.items()},
        "messages_per_s": _rounded(rates.messages_per_s),
        "bytes_per_s": _rounded(rates.bytes_per_s),
        "read_bytes_per_s": _rounded(rates.read_bytes_per_s),
        "by_topic": [
            {
                **rate._asdict(),
                "messages_per_s": _rounded(rate.messages_per_s),
                "bytes_per_s": _rounded(rate.bytes_per_s),
                "note": view.notes.get(rate.topic),
            }
            for rate in view.shown
        ],
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def plain(view: StatsView) -> Iterator[str]:
    """A line for the daemon, and one for each topic that has new messages or a note."""
    time_text, daemon, rates = iso_time(view.time_ms), view.daemon, view.rates
    yield (
        f"{time_text} all: {_per_s(rates.messages_per_s, rates.bytes_per_s)},"
        f" {counted(int(daemon['connections']), 'connection')},"
        f" {counted(int(daemon['topics']), 'topic')},"
        f" {daemon.get('faulted_topics')} faulted"
    )
    for rate in view.shown:
        note = view.notes.get(rate.topic)
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


# -- live view on a terminal --------------------------------------------------------------------


def render_view(view: StatsView, console: Console) -> Group:
    from rich.console import Group
    from rich.text import Text

    hidden = len(view.rates.topics) - len(view.shown)
    below = f"{counted(hidden, 'less busy topic')} not shown; " if hidden > 0 else ""
    foot = Text(f"{below}press Ctrl-C to stop", style="dim")
    return Group(_head(view), Text(), _grid(view), foot)


def _head(view: StatsView) -> Text:
    """Two lines that fit in 80 columns."""
    from rich.text import Text

    daemon, rates = view.daemon, view.rates
    faulted = daemon.get("faulted_topics", "0")
    return Text.assemble(
        (f"logd {daemon.get('version', '')} at {view.address}", "bold"),
        f"   up {duration_text(int(daemon.get('uptime_s', 0)))}",
        f"   fsync {daemon.get('fsync', '')}   connections {daemon.get('connections', '')}\n",
        f"in {_per_s(rates.messages_per_s, rates.bytes_per_s)}",
        f"   out {_rate_text(rates.read_bytes_per_s)}   {bytes_text(int(daemon.get('bytes', 0)))}",
        f"   topics {daemon.get('topics', '')}, ",
        (f"faulted {faulted}", "bold red" if faulted != "0" else ""),
        no_wrap=True,
        overflow="ellipsis",
    )


def _grid(view: StatsView) -> Table:
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, expand=True, padding=(0, 1, 0, 0))
    grid.add_column("TOPIC", overflow="ellipsis", no_wrap=True, ratio=1)
    for name in ("MESSAGES", "NEXT", "MESSAGES/S", "BYTES", "BYTES/S"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("NOTE", no_wrap=True, style="red")
    for rate in view.shown:
        grid.add_row(
            rate.topic,
            count_text(rate.next - rate.first),
            str(rate.next),
            count_text(rate.messages_per_s),
            bytes_text(rate.bytes),
            _rate_text(rate.bytes_per_s),
            view.notes.get(rate.topic, ""),
            style="" if rate.messages_per_s else "dim",
        )
    return grid
