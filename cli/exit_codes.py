"""Exit codes, and the message that is printed for each kind of error."""

from __future__ import annotations

USAGE = NO_CONNECTION = 1
REFUSED = 2
LOSS = 3
INTERRUPTED = 130
TERMINATED = 143
TYPER_USAGE = 2  # Typer exits with 2 on a usage error; log-cli exits with 1


class UsageError(Exception):
    """Options or arguments that cannot be used together, or a value that is not valid."""


class OutputClosed(BaseException):
    """The program that reads standard output has closed it.

    Not an Exception, so that code that handles connection failures does not catch it.
    """


class Terminated(BaseException):
    """SIGTERM was received. Like KeyboardInterrupt, it is not an Exception."""


HINTS = {
    "not-found": "run `log-cli topics` to list the topics",
    "out-of-range": "use --offset first or next, or add --or-first to skip expired messages",
    "faulted": "these offsets are damaged on disk; use --offset to continue after them",
    "checksum": "the data was corrupted on a disk or in transit; retry, then check both disks",
    "unauthorized": "pass the file that contains the token with --token-file or LOGD_TOKEN_FILE",
    "no-space": "free space on the server's disk, then retry",
    "busy": "retry later",
    "shutting-down": "retry when the daemon is running again",
}


def explain(error: Exception) -> tuple[int, str] | None:
    """The exit code and the message for an error; None for a bug, which needs a traceback."""
    from logd import errors
    from logd.storage.disk import SyncFailed
    from logd.wire.addresses import ConnectionLost

    if isinstance(error, errors.DataDirError | errors.ArchiveError | errors.SparkError):
        return USAGE, error.text
    if isinstance(error, errors.LogdError):
        losses = errors.OutOfRange | errors.Faulted | errors.DamagedBatch
        code = LOSS if isinstance(error, losses) else REFUSED
        hint = HINTS.get(error.code)
        return code, f"{error}; {hint}" if hint else str(error)
    if isinstance(error, ConnectionLost):
        return NO_CONNECTION, str(error)
    if isinstance(error, SyncFailed):
        return LOSS, f"fsync failed, written data may be lost: {error}"
    if isinstance(error, OSError) and error.strerror:
        return USAGE, f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, UsageError | OSError):
        return USAGE, str(error)
    return None
