"""`log-cli write`: write messages from arguments, files or standard input.

When the input pauses, the lines read so far are sent after the writer's linger time, so that lines
of a slow pipe arrive one by one. Every outcome is reported with the number of stored messages:
those that the daemon has acknowledged.
"""

from __future__ import annotations

import math
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import connection
from cli.arguments.input_lines import MAX_LINE_BYTES, InputPositions, LineTooLong, split_lines
from cli.arguments.times import parse_duration_s
from cli.arguments.topic_names import Topic
from cli.exit_codes import Terminated, UsageError
from cli.output.progress import progress, repeated
from cli.output.stdout import notice, stdout
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.client.writer import Writer
    from logd.wire.addresses import Target

STDIN = 0
RETRY_S = 5.0  # at least, after the first connection: the daemon may be restarted, or be slow
CLOSE_S = 5.0  # after Ctrl-C or an error, for messages that are not acknowledged yet
_NOTICE_INTERVAL_S = 0.5

Messages = Annotated[
    list[str] | None,
    typer.Argument(metavar="MESSAGE", help="Messages. Without them, or with '-': lines of stdin."),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        exists=True,
        dir_okay=False,
        metavar="FILE",
        help="Write the lines of this file. Can be repeated.",
    ),
]
Wait = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="DURATION",
        help="Retry for this time while the daemon is unavailable: 30s, 5m, 0 or forever."
        " [default: 0 for the first connection, then 5s]",
    ),
]
Compress = Annotated[bool, typer.Option("--compress", help="Send and store batches as zstd.")]
Silent = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing unless it fails.")]


def write(
    ctx: typer.Context,
    topic: Topic,
    messages: Messages = None,
    file: Files = None,
    wait: Wait = None,
    compress: Compress = False,
    quiet: Silent = False,
    host: connection.Host = None,
) -> None:
    """Write messages to a topic and print their offsets.

    Stops at the first line that the daemon rejects: all lines before it are stored, none after it.

    \b
    log-cli write app 'hello, log'
    tail -f /var/log/syslog | log-cli write syslog --wait forever
    """
    if messages and file:
        raise UsageError("messages and --file cannot be used together")
    wait_s = 0.0 if wait is None else _parse_wait_s(wait)
    positions = InputPositions()
    with (
        _connect(connection.address(ctx, host), topic, compress, wait_s, quiet) as writer,
        _failure_reported(topic, writer, positions),
        _retries_reported(writer, quiet),
    ):
        if messages and messages != ["-"]:
            positions.begin("the arguments")
            _write(writer, positions, list(map(os.fsencode, messages)))
        else:
            for source in [*file] if file else [STDIN]:
                _copy(source, topic, writer, positions, quiet)
        writer.close()
    if not quiet and sys.stdout is not None:
        _print(stored_text(topic, writer.acknowledged, writer.first_offset, writer.next_offset))


def _print(text: str) -> None:
    """If stdout fails, state on stderr that the messages are stored."""
    try:
        with stdout() as out:
            out.write(f"{text}\n".encode())
    except OSError:
        notice(f"stored {text}, but writing to standard output failed")
        raise


def stored_text(topic: str, messages: int, first: int | None, next: int | None) -> str:
    if first is None or next is None:
        return f"{topic}: no messages"
    mixed = "" if next - first == messages else ", mixed with messages of other clients"
    return f"{topic} {first}..{next - 1} ({counted(messages, 'message')}{mixed})"


# -- connection ---------------------------------------------------------------------------------


def _parse_wait_s(text: str) -> float:
    return math.inf if text == "forever" else parse_duration_s(text, "--wait", "0 or forever")


def _connect(address: Target, topic: str, compress: bool, wait_s: float, quiet: bool) -> Writer:
    """Retry for `wait_s`; then raise the last error."""
    from logd.client.backoff import RETRYABLE, RetryDeadline
    from logd.client.writer import Writer
    from logd.wire.addresses import ConnectionLost, WrongPort

    deadline, printed = RetryDeadline(wait_s, time.monotonic()), ""
    while True:
        try:
            return Writer(address, topic, compress=compress, patience_s=max(wait_s, RETRY_S))
        except RETRYABLE as error:
            if isinstance(error, WrongPort):
                raise
            if not wait_s and isinstance(error, ConnectionLost):
                raise ConnectionLost(f"{error}; use --wait 1m to wait for it") from None
            pause_s = deadline.pause_s(error, time.monotonic())
            if str(error) != printed:
                printed = str(error)
                notice(f"{error}; retrying", quiet)
            time.sleep(pause_s)


def _retries_reported(writer: Writer, quiet: bool) -> AbstractContextManager[None]:
    """While the writer waits for the daemon, print each new reason once."""
    printed = ""

    def report() -> None:
        nonlocal printed
        text = "" if writer.trouble is None else str(writer.trouble)
        if text and text != printed:
            notice(f"{text}; retrying", quiet)
        printed = text

    return repeated(report, _NOTICE_INTERVAL_S)


# -- messages -----------------------------------------------------------------------------------


def _copy(
    name: Path | int, topic: str, writer: Writer, positions: InputPositions, quiet: bool
) -> None:
    positions.begin("stdin" if name == STDIN else str(name))
    with open(name, "rb", buffering=0, closefd=name != STDIN) as source:
        if source.isatty():
            notice("each line is a message; press Ctrl-D to finish", quiet)
        with progress(f"writing {topic}", _size(source), quiet) as advance:
            for lines, size in split_lines(source):
                _write(writer, positions, lines)
                advance(size)


def _write(writer: Writer, positions: InputPositions, lines: list[bytes]) -> None:
    positions.add(lines, writer.acknowledged)
    writer.write_many(lines)


def _size(source: FileIO) -> int:
    status = os.fstat(source.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


# -- failures -----------------------------------------------------------------------------------


@contextmanager
def _failure_reported(topic: str, writer: Writer, positions: InputPositions) -> Iterator[None]:
    """After an error, print how many messages are stored, and which are not."""
    from logd.errors import TRY_AGAIN, LogdError, TooLarge

    def close() -> str:
        with suppress(Exception):  # the first error is reported
            writer.close(CLOSE_S)
        if not writer.acknowledged:
            return "nothing was stored"
        count, first, next_ = writer.acknowledged, writer.first_offset, writer.next_offset
        return f"stored {stored_text(topic, count, first, next_)}"

    try:
        yield
    except LineTooLong:
        stored, line = close(), positions.place(positions.messages)
        notice(f"{stored}; {line} was rejected, and nothing after it was stored")
        raise TooLarge(f"the line has more than {MAX_LINE_BYTES} bytes") from None
    except (KeyboardInterrupt, Terminated):
        stored = close()
        missing = positions.messages - writer.acknowledged
        more = f"; {counted(missing, 'more line')} may or may not be stored" if missing else ""
        notice(f"interrupted; {stored}{more}")
        raise
    except (LogdError, OSError) as error:
        stored = close()
        is_rejected = isinstance(error, LogdError) and not isinstance(error, TRY_AGAIN)
        notice(f"{stored}; {_not_stored_text(writer.acknowledged, positions, is_rejected)}")
        raise


def _not_stored_text(first: int, positions: InputPositions, is_rejected: bool) -> str:
    """`first` is the first message that was not acknowledged; none after it is stored."""
    if first >= positions.messages:
        return "all messages that were read are stored"
    line = positions.place(first)
    if not is_rejected:
        return f"{line} and the lines after it were not acknowledged and may or may not be stored"
    size = positions.size_if_large(first)
    what = f"the batch that begins with {line}" if size is None else f"{line} ({size} bytes)"
    return f"{what} was rejected, and nothing after it was stored"
