"""What went wrong, as an exit code and a sentence for a person."""

from __future__ import annotations

USAGE = NO_CONNECTION = 1
REFUSED = 2
LOSS = 3
INTERRUPTED = 130
TERMINATED = 143
TYPER_USAGE = 2  # Typer's own code for a usage error, which means something else here


class Misuse(Exception):
    """Options or arguments that make no sense. The text says what would."""


class OutputGone(BaseException):
    """Nobody reads what would be printed.

    Not an Exception: whoever handles failures of the connection must let it pass.
    """


class Terminated(BaseException):
    """SIGTERM has arrived. Like KeyboardInterrupt, it is not handled where failures are."""


HINTS = {
    "not-found": "`log-cli topics` lists the topics there are",
    "out-of-range": "start at --offset first or next, or add --or-first to skip what is gone",
    "faulted": "these offsets are damaged on disk; read on behind them with --offset",
    "checksum": "the bytes were changed on a disk or on the way; try again, then check both disks",
    "unauthorized": "give the file that holds it with --token-file, or LOGD_TOKEN_FILE",
    "no-space": "make room on the server's disk, then write again",
    "busy": "try again in a moment",
    "shutting-down": "try again when the daemon is back",
}


def explain(error: Exception) -> tuple[int, str] | None:
    """The exit code and the sentence for an error; None for a bug, where a traceback helps."""
    from logd.errors import (
        ArchiveError,
        DamagedBatch,
        DataDirError,
        Faulted,
        LogdError,
        OutOfRange,
        SparkError,
    )
    from logd.storage.disk import SyncFailed
    from logd.wire.addresses import ConnectionLost

    if isinstance(error, DataDirError | ArchiveError | SparkError):
        return USAGE, error.text
    if isinstance(error, LogdError):
        code = LOSS if isinstance(error, OutOfRange | Faulted | DamagedBatch) else REFUSED
        hint = HINTS.get(error.code)
        return code, f"{error}; {hint}" if hint else str(error)
    if isinstance(error, ConnectionLost):
        return NO_CONNECTION, str(error)
    if isinstance(error, SyncFailed):
        return LOSS, f"a disk failed to keep what was written: {error}"
    if isinstance(error, OSError) and error.strerror:
        return USAGE, f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, Misuse | OSError):
        return USAGE, str(error)
    return None
