"""`log-cli forward`: send the lines of growing files to a topic, each line once and in order."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exit_codes
from cli.arguments import connection
from cli.exit_codes import UsageError
from cli.output.stdout import Quiet, notifier

if TYPE_CHECKING:
    from logd.forward.forwarder import Render

LINE_FORMATS = ("none", "syslog", "common", "combined", "json")
MAX_LINE_BYTES = 4 << 20
MAX_FIELD_BYTES = 4096  # of all --field options together
PIECE_BUDGET_BYTES = 2 << 20  # that fields and paths may add to one batch

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Files, or patterns such as '/var/log/app/**/*.log'."),
]
Topic = Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="Topic name.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        "-H",
        metavar="HOST:PORT",
        help="Address of the daemon; repeat for further addresses. [env var: LOGD_HOST]",
    ),
]
StatePath = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Directory for positions and the spool. [default: ~/.local/state/logd/forward/TOPIC]",
        show_default=False,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Exclude files by path or name. Can be repeated."),
]
FromEnd = Annotated[
    bool,
    typer.Option(
        "--from-end/--from-start", help="Where to start in files that exist at the first run."
    ),
]
Once = Annotated[
    bool, typer.Option("--once", help="Send the current content and exit when it is stored.")
]
Parse = Annotated[
    str, typer.Option(metavar="|".join(LINE_FORMATS), help="Convert each line to a JSON object.")
]
Field = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Add this field to each object. Can be repeated."),
]
AddPath = Annotated[bool, typer.Option("--add-path", help="Add the file's path to each object.")]
FlushPartial = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Send an incomplete last line after this time. [default: when the file is rotated]",
        show_default=False,
    ),
]
MaxLine = Annotated[
    int, typer.Option(min=1, max=MAX_LINE_BYTES, help="Maximum length; longer lines are truncated.")
]
SpoolBytes = Annotated[
    int, typer.Option(min=1, help="Stop reading files while the spool has this size.")
]


def forward(
    ctx: typer.Context,
    paths: Paths,
    topic: Topic,
    host: Hosts = None,
    state_dir: StatePath = None,
    exclude: Exclude = None,
    from_end: FromEnd = False,
    once: Once = False,
    parse: Parse = "none",
    field: Field = None,
    add_path: AddPath = False,
    flush_partial: FlushPartial = None,
    max_line_bytes: MaxLine = 1 << 18,
    spool_bytes: SpoolBytes = 1 << 30,
    quiet: Quiet = False,
) -> None:
    """Send the lines of growing files to a topic.

    Each line is sent once, even if files are rotated, this command is restarted, or the daemon is
    unavailable. Runs until Ctrl-C.

    \b
    log-cli forward /var/log/syslog --topic syslog
    log-cli forward '/var/log/nginx/*.log' --topic web --parse combined
    """
    from logd.forward.forwarder import Forwarder, ForwardOptions, load_state
    from logd.forward.lines import CHUNK_LINES, LineLimits
    from logd.forward.path_reader import RotationTimeouts
    from logd.forward.paths import PathPatterns
    from logd.forward.spooled_output import SpooledOutput, read_spool
    from logd.forward.state_directory import StateDir, default_path
    from logd.wire.commands import checked_topic

    notify = notifier(quiet)
    fields = _fields(field or [])
    target = connection.address(ctx, *(host or []))
    per_line = 4096 if add_path else 1 + len(repr(fields))
    options = ForwardOptions(
        PathPatterns(paths, exclude or []),
        render=_render(parse, fields, add_path),
        limits=LineLimits(max_line_bytes, max(1, min(CHUNK_LINES, PIECE_BUDGET_BYTES // per_line))),
        timeouts=RotationTimeouts(rotated_line_s=0.0 if once else 1.0, partial_s=flush_partial),
        from_end=from_end,
        once=once,
        spool_bytes=spool_bytes,
    )
    state = StateDir(state_dir or default_path(checked_topic(topic)), checked_topic(topic))
    initial = load_state(state, lambda after: read_spool(state.spool, after))
    output = SpooledOutput(target, topic, state.spool, notify)
    try:
        forwarder = Forwarder(state, initial, output, options, notify)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: forwarder.stop())
        signal.signal(signal.SIGUSR1, lambda *_: forwarder.report())
        notify(f"forwarding {' '.join(paths)} to {topic}; press Ctrl-C to stop")
        forwarder.run()
        notify(forwarder.summary())
    finally:
        output.close()
    if output.refused_lines:
        raise typer.Exit(exit_codes.LOSS)


def _render(parse: str, fields: dict[str, str], add_path: bool) -> Render | None:
    from logd.forward.line_formats import LineFormat, renderer

    if parse not in LINE_FORMATS:
        raise UsageError(f"invalid value {parse!r} for --parse: use {', '.join(LINE_FORMATS)}")
    return renderer(LineFormat(parse), fields, add_path=add_path)


def _fields(texts: list[str]) -> dict[str, str]:
    fields = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", name):
            raise UsageError(f"invalid value {text!r} for --field: use NAME=VALUE")
        if name in ("line", "line64", "path"):
            raise UsageError(f"--field cannot set {name}: use another name")
        fields[name] = value
    if len(repr(fields).encode("utf-8", "replace")) > MAX_FIELD_BYTES:
        raise UsageError(f"all --field options together exceed {MAX_FIELD_BYTES} bytes")
    return fields
