"""`log-cli stats`: print the counters of the daemon or of one topic, once or repeatedly."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from typer.core import TyperCommand

from cli.arguments import connection
from cli.arguments.data_directory import OfflineDataDir
from cli.arguments.message_source import MessageSource
from cli.arguments.topic_names import topic_argument
from cli.exit_codes import UsageError
from cli.output.stats_rates import stat_value
from cli.output.stdout import Quiet, ReportFormat, ReportOutput, print_report

Topic = Annotated[str | None, topic_argument("Topic name. [default: counters of the daemon]")]
Watch = Annotated[
    float | None,
    typer.Option(
        "--watch", "-w", min=0.1, max=3600, metavar="[SECONDS]", show_default=False,
        help="Print rates until Ctrl-C, every second or at this interval.",
    ),
]  # fmt: skip

_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_WATCH = ("--watch", "-w")
DEFAULT_INTERVAL_S = "1"


class WatchCommand(TyperCommand):
    """Makes the number after `--watch` optional, which Typer does not support."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        return super().parse_args(ctx, with_seconds(args))


def with_seconds(args: list[str]) -> list[str]:
    """The arguments, with the default interval after a --watch without a number."""
    words: list[str] = []
    for i, word in enumerate(args):
        words.append(word)
        following = args[i + 1] if i + 1 < len(args) else ""
        if word in _WATCH and "--" not in words and not _SECONDS.fullmatch(following):
            words.append(DEFAULT_INTERVAL_S)
    return words


def stats(
    ctx: typer.Context,
    topic: Topic = None,
    watch: Watch = None,
    output: ReportOutput = ReportFormat.text,
    quiet: Quiet = False,
    data_dir: OfflineDataDir = None,
    host: connection.Host = None,
) -> None:
    """Print the counters of the daemon or of one topic.

    \b
    log-cli stats app
    log-cli stats --watch 5
    """
    if watch is not None:
        if data_dir is not None:
            raise UsageError("--watch needs a daemon and cannot be used with --data-dir")
        from cli.output.live_stats import run

        run(connection.address(ctx, host), topic, watch, output)
        return
    counters = MessageSource(ctx, host, data_dir, quiet).stats(topic)
    values = {name: stat_value(name, text) for name, text in counters.items()}
    print_report(output, [values], (f"{name}: {text}" for name, text in counters.items()))
