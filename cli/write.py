"""`log-cli write`: messages from arguments, files or standard input.

Input is read in large pieces and cut at LF, so that a file goes in as fast as the writer takes it;
a piece ends where the input pauses, and then the writer's linger sends it, so that a slow pipe
arrives line by line.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from cli import connect
from cli.failures import Misuse
from cli.output import notice
from cli.progress import progress
from cli.show import Topic
from logd.shown import counted

if TYPE_CHECKING:
    from logd.writer import Writer

STDIN = 0
PIECE_BYTES = 1 << 18
PATIENCE_S = 5.0  # with a daemon that is restarted meanwhile, or that refuses for the moment

Messages = Annotated[
    list[str] | None,
    typer.Argument(metavar="MESSAGE", help="The messages; none or '-': lines of stdin."),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        exists=True,
        dir_okay=False,
        metavar="FILE",
        help="Write the lines of this file. May be repeated.",
    ),
]
Silent = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing, unless it fails.")]


def write(
    ctx: typer.Context,
    topic: Topic,
    messages: Messages = None,
    file: Files = None,
    compress: Annotated[bool, typer.Option("--compress", help="Send and store as zstd.")] = False,
    quiet: Silent = False,
    host: connect.Host = None,
) -> None:
    """Write messages to a topic, and say where they landed.

    \b
    log-cli write app 'hello, log'
    tail -f /var/log/syslog | log-cli write syslog
    """
    if messages and file:
        raise Misuse("give messages or --file, not both")

    from logd.writer import Writer

    address = connect.address(ctx, host)
    with Writer(address, topic, compress=compress, patience_s=PATIENCE_S) as writer:
        if messages and messages != ["-"]:
            writer.write_many(map(os.fsencode, messages))
        else:
            names: list[Path | int] = [*file] if file else [STDIN]
            for name in names:
                with open(name, "rb", buffering=0, closefd=name != STDIN) as source:
                    _copy(source, writer, f"writing {topic}", quiet)
    if not quiet:
        print(landed(topic, writer.acknowledged, writer.first_offset, writer.next_offset))


def landed(topic: str, messages: int, first: int | None, next: int | None) -> str:
    if first is None or next is None:
        return f"{topic}: no messages"
    among = "" if next - first == messages else ", others' between them"
    return f"{topic} {first}..{next - 1} ({counted(messages, 'message')}{among})"


def _copy(source: FileIO, writer: Writer, what: str, quiet: bool) -> None:
    if source.isatty():
        notice("each line you type is a message; Ctrl-D ends it", quiet)
    with progress(what, _size(source), quiet) as advance:
        for lines, size in cut_lines(source):
            writer.write_many(lines)
            advance(size)


def cut_lines(source: FileIO | BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """The lines that each piece of the input completes, without LF, and the piece's size.

    What follows the last LF is a line too. Pieces of an unfinished line are joined once.
    """
    unfinished: list[bytes] = []
    while piece := source.read(PIECE_BYTES):
        lines = piece.split(b"\n")
        unfinished.append(lines[0])
        if len(lines) > 1:
            lines[0] = b"".join(unfinished)
            unfinished = [lines.pop()]
            yield lines, len(piece)
    if rest := b"".join(unfinished):
        yield [rest], 0


def _size(source: FileIO) -> int:
    status = os.fstat(source.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
