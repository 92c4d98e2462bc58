"""`log-cli forward`: ship files as they grow, each line once and in order."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from cli import connection_options, exit_codes
from cli.exit_codes import Misuse
from cli.message_formats import notice
from cli.message_output import Quiet

if TYPE_CHECKING:
    from logd.forward.forwarder import Forwarder, Render

FORMS = ("none", "syslog", "common", "combined", "json")
MAX_LINE_BYTES = 4 << 20
MAX_FIELD_BYTES = 4096  # of all --field together
PIECE_BUDGET_BYTES = 2 << 20  # what fields and paths may add to one batch

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Files, or globs in quotes: '/var/log/app/**/*.log'."),
]
Topic = Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="Where to.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        "-H",
        metavar="HOST:PORT",
        help="The daemon. Repeated: its other addresses. [env var: LOGD_HOST]",
    ),
]
StatePath = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Positions and spool. [default: ~/.local/state/logd/forward/TOPIC]",
        show_default=False,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Leave out paths or names like this. May be repeated."),
]
FromEnd = Annotated[
    bool,
    typer.Option(
        "--from-end/--from-start",
        help="Where to start in the files that are there at the very first run.",
    ),
]
Once = Annotated[
    bool, typer.Option("--once", help="Ship what is there, wait until it is stored, and exit.")
]
Parse = Annotated[
    str,
    typer.Option(metavar="|".join(FORMS), help="Make a JSON object of each line."),
]
Field = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Put this into each object. May be repeated."),
]
AddPath = Annotated[bool, typer.Option("--add-path", help="Put the file's path into each object.")]
FlushPartial = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Ship a last line without an end after this long. [default: when rotated away]",
        show_default=False,
    ),
]
MaxLine = Annotated[
    int, typer.Option(min=1, max=MAX_LINE_BYTES, help="Cut longer lines here, and count them.")
]
SpoolBytes = Annotated[
    int, typer.Option(min=1, help="Stop reading when this much waits for the daemon.")
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
    """Ship files to a topic as they grow.

    Each line once, through rotations, restarts and the daemon's absence, until Ctrl-C.

    \b
    log-cli forward /var/log/syslog --topic syslog
    log-cli forward '/var/log/nginx/*.log' --topic web --parse combined
    """
    from logd.forward.forwarder import Forwarder, ForwardOptions, remember
    from logd.forward.lines import PIECE_LINES, LineLimits
    from logd.forward.paths import Patterns
    from logd.forward.rotation import RotationWait
    from logd.forward.spooled_output import SpooledOutput, leftover
    from logd.forward.state_directory import StateDir, default_path
    from logd.wire.commands import checked_topic

    def say(text: str) -> None:
        notice(text, quiet)

    fields = _fields(field or [])
    target = connection_options.address(ctx, *(host or []))
    per_line = 4096 if add_path else 1 + len(repr(fields))
    options = ForwardOptions(
        Patterns(paths, exclude or []),
        render=_render(parse, fields, add_path),
        limits=LineLimits(max_line_bytes, max(1, min(PIECE_LINES, PIECE_BUDGET_BYTES // per_line))),
        patience=RotationWait(rotated_line_s=0.0 if once else 1.0, partial_s=flush_partial),
        from_end=from_end,
        once=once,
        spool_bytes=spool_bytes,
    )
    state = StateDir(state_dir or default_path(checked_topic(topic)), checked_topic(topic))
    memory = remember(state, lambda after: leftover(state.spool, after))
    outbox = SpooledOutput(target, topic, state.spool, say)
    try:
        forwarder = Forwarder(state, memory, outbox, options, say)
        _obey_signals(forwarder)
        say(f"forwarding {' '.join(paths)} to {topic}; Ctrl-C ends it")
        forwarder.run()
        say(forwarder.summary())
    finally:
        outbox.close()
    if outbox.refused_lines:
        raise typer.Exit(exit_codes.LOSS)


def _obey_signals(forwarder: Forwarder) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        forwarder.stop()

    def report(number: int, frame: FrameType | None) -> None:
        forwarder.report()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGUSR1, report)


def _render(parse: str, fields: dict[str, str], add_path: bool) -> Render | None:
    from logd.forward.line_formats import LineFormat, renderer

    if parse not in FORMS:
        raise Misuse(f"--parse {parse} is not known; write one of {', '.join(FORMS)}")
    return renderer(LineFormat(parse), fields, add_path=add_path)


def _fields(texts: list[str]) -> dict[str, str]:
    fields = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", name):
            raise Misuse(f"--field {text} is not NAME=VALUE; write for example --field site=berlin")
        if name in ("line", "line64", "path"):
            raise Misuse(f"--field {name}= would hide the {name} itself; choose another name")
        fields[name] = value
    if len(repr(fields).encode("utf-8", "replace")) > MAX_FIELD_BYTES:
        raise Misuse(f"all --field together may have {MAX_FIELD_BYTES} bytes; give fewer")
    return fields
