"""`log-cli write`: messages from arguments, files or standard input.

A piece of the input ends where the input pauses, and then the writer's linger sends it, so that a
slow pipe arrives line by line. However it ends, it reports what was stored: only what the daemon
has acknowledged.
"""

from __future__ import annotations

import math
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import connection_options
from cli.exit_codes import Misuse, Terminated
from cli.input_lines import MAX_LINE_BYTES, LineTooLong, Origins, cut_lines
from cli.message_formats import notice, stdout
from cli.message_output import Topic
from cli.points_in_time import parse_duration_s
from cli.progress import progress
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.client.writer import Writer
    from logd.wire.addresses import Target

STDIN = 0
PATIENCE_S = 5.0  # at least, with a daemon that was there: it may be restarted, or be slow
CLOSE_S = 5.0  # after Ctrl-C or a failure, for what was read and is not yet acknowledged
_LOOK_S = 0.5

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
Wait = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="DURATION",
        help="Keep trying for this long while no daemon answers: 30s, 5m, 0 or forever."
        " [default: 0 for the first connection, 5s after it]",
    ),
]
Silent = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing, unless it fails.")]


def write(
    ctx: typer.Context,
    topic: Topic,
    messages: Messages = None,
    file: Files = None,
    wait: Wait = None,
    compress: Annotated[bool, typer.Option("--compress", help="Send and store as zstd.")] = False,
    quiet: Silent = False,
    host: connection_options.Host = None,
) -> None:
    """Write messages to a topic, and print their offsets.

    It ends at the first line that the daemon rejects: all lines before it are stored, none after.

    \b
    log-cli write app 'hello, log'
    tail -f /var/log/syslog | log-cli write syslog --wait forever
    """
    if messages and file:
        raise Misuse("give messages or --file, not both")
    wait_s = 0.0 if wait is None else _wait_s(wait)
    origins = Origins()
    with (
        _connected(connection_options.address(ctx, host), topic, compress, wait_s, quiet) as writer,
        _reported(topic, writer, origins),
        _trouble_shown(writer, quiet),
    ):
        if messages and messages != ["-"]:
            origins.begin("the arguments")
            _write(writer, origins, list(map(os.fsencode, messages)))
        else:
            for source in [*file] if file else [STDIN]:
                _copy(source, topic, writer, origins, quiet)
        writer.close()
    if not quiet and sys.stdout is not None:
        _print(landed(topic, writer.acknowledged, writer.first_offset, writer.next_offset))


def _print(text: str) -> None:
    """Messages that are stored must not look as if they were not, whatever stdout is."""
    try:
        with stdout() as out:
            out.write(f"{text}\n".encode())
    except OSError:
        notice(f"stored {text}, but this cannot be written to standard output")
        raise


def landed(topic: str, messages: int, first: int | None, next: int | None) -> str:
    if first is None or next is None:
        return f"{topic}: no messages"
    among = "" if next - first == messages else ", others' between them"
    return f"{topic} {first}..{next - 1} ({counted(messages, 'message')}{among})"


# -- the connection -----------------------------------------------------------------------------


def _wait_s(text: str) -> float:
    return math.inf if text == "forever" else parse_duration_s(text, "--wait", "0, forever")


def _connected(address: Target, topic: str, compress: bool, wait_s: float, quiet: bool) -> Writer:
    """Tries again for `wait_s`; then raises why there is no connection."""
    from logd.client.backoff import RetryDeadline
    from logd.client.writer import Writer
    from logd.errors import TRY_AGAIN
    from logd.wire.addresses import ConnectionLost, WrongPort

    patience, said = RetryDeadline(wait_s, time.monotonic()), ""
    while True:
        try:
            return Writer(address, topic, compress=compress, patience_s=max(wait_s, PATIENCE_S))
        except (ConnectionLost, *TRY_AGAIN) as error:
            if isinstance(error, WrongPort):
                raise
            if not wait_s and isinstance(error, ConnectionLost):
                raise ConnectionLost(f"{error}; --wait 1m waits for it") from None
            pause_s = patience.pause_s(error, time.monotonic())
            if str(error) != said:
                said = str(error)
                notice(f"{error}; trying again", quiet)
            time.sleep(pause_s)


@contextmanager
def _trouble_shown(writer: Writer, quiet: bool) -> Iterator[None]:
    """While it waits for a daemon that went away, say so."""

    def look() -> None:
        said = ""
        while not over.wait(_LOOK_S):
            trouble = writer.trouble
            if trouble is not None and str(trouble) != said:
                notice(f"{trouble}; trying again", quiet)
            said = "" if trouble is None else str(trouble)

    over = threading.Event()
    thread = threading.Thread(target=look, name="write-trouble", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# -- messages -----------------------------------------------------------------------------------


def _copy(name: Path | int, topic: str, writer: Writer, origins: Origins, quiet: bool) -> None:
    origins.begin("stdin" if name == STDIN else str(name))
    with open(name, "rb", buffering=0, closefd=name != STDIN) as source:
        if source.isatty():
            notice("each line you type is a message; Ctrl-D ends it", quiet)
        with progress(f"writing {topic}", _size(source), quiet) as advance:
            for lines, size in cut_lines(source):
                _write(writer, origins, lines)
                advance(size)


def _write(writer: Writer, origins: Origins, lines: list[bytes]) -> None:
    origins.add(lines, writer.acknowledged)
    writer.write_many(lines)


def _size(source: FileIO) -> int:
    status = os.fstat(source.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


# -- how it ended -------------------------------------------------------------------------------


@contextmanager
def _reported(topic: str, writer: Writer, origins: Origins) -> Iterator[None]:
    """If it does not end well: how much was stored, and what was not."""
    from logd.errors import TRY_AGAIN, LogdError, TooLarge

    def stored() -> str:
        if not writer.acknowledged:
            return "nothing was stored"
        count, first, next_ = writer.acknowledged, writer.first_offset, writer.next_offset
        return f"stored {landed(topic, count, first, next_)}"

    def ended() -> None:
        with suppress(Exception):  # it is reported, or what was not acknowledged is
            writer.close(CLOSE_S)

    try:
        yield
    except LineTooLong:
        ended()
        line = origins.place(origins.messages)
        notice(f"{stored()}; {line} was rejected, and nothing after it was stored")
        raise TooLarge(f"the line has more than {MAX_LINE_BYTES} bytes") from None
    except (KeyboardInterrupt, Terminated):
        ended()
        missing = origins.messages - writer.acknowledged
        more = f"; {counted(missing, 'more line')} may or may not be stored" if missing else ""
        notice(f"interrupted; {stored()}{more}")
        raise
    except (LogdError, OSError) as error:
        ended()
        is_rejected = isinstance(error, LogdError) and not isinstance(error, TRY_AGAIN)
        notice(f"{stored()}; {_not_stored(writer.acknowledged, origins, is_rejected)}")
        raise


def _not_stored(first: int, origins: Origins, is_rejected: bool) -> str:
    """`first` is the first message that was not acknowledged. Those after it are not stored."""
    if first >= origins.messages:
        return "all messages that were read are stored"
    line = origins.place(first)
    if not is_rejected:
        return f"from {line} on nothing was acknowledged: these lines may or may not be stored"
    size = origins.size_if_large(first)
    what = f"the batch that begins with {line}" if size is None else f"{line} ({size} bytes)"
    return f"{what} was rejected, and nothing after it was stored"
