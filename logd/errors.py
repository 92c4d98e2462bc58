"""All errors of logd: one class per error code of the protocol.

An error has a code, an HTTP status, and a flag that tells whether it closes the connection. Any
input results in a value or in one of these errors. Imports nothing of logd.
"""

from __future__ import annotations


class LogdError(Exception):
    """A request failed. `text` is one sentence that states what to do about it.

    `log_text` is the text for the daemon's log: it may name files of the server, which must not be
    sent to a client, and must not quote input, which may contain a secret.
    """

    code = "internal"
    status = 500
    closes = False

    def __init__(
        self, text: str, *, closes: bool | None = None, log_text: str | None = None
    ) -> None:
        super().__init__(text)
        self.text = text
        self.log_text = text if log_text is None else log_text
        if closes is not None:
            self.closes = closes

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"

    def line(self) -> bytes:
        """The reply line for this error. Input that is quoted in it is escaped."""
        return f"ERR {self.code} {ascii(self.text)[1:-1]}\r\n".encode("ascii")


class BadRequest(LogdError):
    code, status = "bad-request", 400


class UnknownCommand(LogdError):
    code, status, closes = "unknown-command", 400, True


class BadTopic(LogdError):
    code, status = "bad-topic", 400


class NotFound(LogdError):
    code, status = "not-found", 404


class OutOfRange(LogdError):
    code, status = "out-of-range", 416


class ChecksumMismatch(LogdError):
    code, status = "checksum", 400


class TooLarge(LogdError):
    code, status, closes = "too-large", 413, True


class OutOfOrder(LogdError):
    code, status = "out-of-order", 409


class Conflict(LogdError):
    code, status = "conflict", 409


class TopicLimit(LogdError):
    code, status = "topic-limit", 403


class Forbidden(LogdError):
    code, status = "forbidden", 403


class Unauthorized(LogdError):
    code, status, closes = "unauthorized", 401, True


class Busy(LogdError):
    code, status = "busy", 503


class NoSpace(LogdError):
    code, status = "no-space", 507


class Faulted(LogdError):
    code, status = "faulted", 500


class IoError(LogdError):
    code, status = "io", 500


class ShuttingDown(LogdError):
    code, status = "shutting-down", 503


class Internal(LogdError):
    code, status = "internal", 500


BY_CODE = {kind.code: kind for kind in LogdError.__subclasses__()}  # the classes above
TRY_AGAIN = (Busy, NoSpace, ShuttingDown)  # the same request may succeed later


def from_code(code: str, text: str) -> LogdError:
    """The error of an `ERR <code> <text>` reply; Internal for an unknown code."""
    kind = BY_CODE.get(code)
    return kind(text) if kind else Internal(f"{code} {text}")


class DamagedBatch(LogdError):
    """Bytes that are not a valid batch, with their position."""

    code = "checksum"

    def __init__(self, text: str, position: int = 0) -> None:
        super().__init__(f"{text} (at byte {position})")
        self.position = position
        self.reason = text


class DataDirError(LogdError):
    """The data directory cannot be used. Never sent to a client."""

    code = "io"


class ArchiveError(LogdError):
    """The archive cannot be used."""

    code = "io"


class SparkError(LogdError):
    """Spark is not available, or a Spark job failed."""

    code = "internal"


class RegisterUnavailable(LogdError):
    """The cluster register could not be read, or refused a change: nothing was changed."""

    code = "busy"


class OutcomeUnknown(LogdError):
    """A change of the cluster register was sent and not answered: it may be applied, even later."""

    code = "internal"


class InvalidState(LogdError):
    """The cluster register does not contain a valid state."""

    code = "internal"
