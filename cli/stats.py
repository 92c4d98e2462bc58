"""`log-cli stats`: what the daemon counts, overall or for one topic, once or again and again."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from typer.core import TyperCommand

from cli import connection_options, source
from cli.completion import complete_topic
from cli.exit_codes import Misuse
from cli.message_formats import Table, json_line, stat_value, stdout
from cli.message_output import Quiet

Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC", help="One topic; none: the daemon.", autocompletion=complete_topic
    ),
]
Output = Annotated[Table, typer.Option("-o", "--output", help="text, or json: one object.")]
Watch = Annotated[
    float | None,
    typer.Option(
        "--watch", "-w", min=0.1, max=3600, metavar="[SECONDS]", show_default=False,
        help="Rates, again every second or as often as told, until Ctrl-C.",
    ),
]  # fmt: skip

_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_WATCH = ("--watch", "-w")
EVERY_S = "1"


class WatchCommand(TyperCommand):
    """`--watch` with or without a number behind it, which Typer does not offer."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        return super().parse_args(ctx, with_seconds(args))


def with_seconds(args: list[str]) -> list[str]:
    """The same words, with the default behind a --watch that has no number."""
    words: list[str] = []
    for i, word in enumerate(args):
        words.append(word)
        following = args[i + 1] if i + 1 < len(args) else ""
        if word in _WATCH and "--" not in words and not _SECONDS.fullmatch(following):
            words.append(EVERY_S)
    return words


def stats(
    ctx: typer.Context,
    topic: Topic = None,
    watch: Watch = None,
    output: Output = Table.text,
    quiet: Quiet = False,
    data_dir: source.Files = None,
    host: connection_options.Host = None,
) -> None:
    """Print counters of the daemon or of one topic.

    \b
    log-cli stats app
    log-cli stats --watch 5
    """
    if watch is not None:
        if data_dir is not None:
            raise Misuse("files do not change: leave out --watch, or ask the daemon")
        from cli.live_stats import run

        run(connection_options.address(ctx, host), topic, watch, output)
        return
    counters = source.stats(ctx, topic, host=host, data_dir=data_dir, quiet=quiet)
    with stdout() as out:
        if output is Table.json:
            out.write(json_line({name: stat_value(name, text) for name, text in counters.items()}))
        else:
            out.write("".join(f"{name}: {text}\n" for name, text in counters.items()).encode())
