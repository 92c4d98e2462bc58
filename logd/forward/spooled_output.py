"""The output of the forwarder: a `Writer` with a spool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from logd.client.spool import Spool
from logd.client.writer import Writer
from logd.errors import LogdError
from logd.wire.addresses import Target
from logd.wire.text import counted

Notify = Callable[[str], None]

# The forwarder stops reading at its own limit; the writer must not block it.
_NO_LIMIT = 1 << 62


class SpoolContents(NamedTuple):
    """The spool of an earlier process: the last number, and the notes after a given number."""

    last: int
    notes: list[tuple[int, str]]


def read_spool(spool: Path, after: int) -> SpoolContents:
    """Must be called before a writer opens the spool, which may remove batches immediately."""
    opened = Spool(spool, fsync=True)
    try:
        return SpoolContents(opened.last, list(opened.notes(after)))
    finally:
        opened.close()


class SpooledLines(NamedTuple):
    batches: int
    bytes: int


class SpooledOutput:
    """Batches are on disk when `push` returns, sent in order, and removed when acknowledged."""

    def __init__(self, target: Target, topic: str, spool: Path, notify: Notify) -> None:
        self._notify = notify
        self._writer = Writer(
            target,
            topic,
            spool=spool,
            spool_bytes=_NO_LIMIT,
            spool_fsync=True,
            on_loss=lambda loss: notify(str(loss)),
            on_refused=self._refused,
        )
        assert self._writer.spool is not None
        self._spool = self._writer.spool
        self.refused_lines = 0

    @property
    def last(self) -> int:
        return self._spool.last

    def before_removal(self, call: Callable[[], None]) -> None:
        self._spool.before_removal = call

    def push(self, messages: list[bytes], note: str) -> None:
        self._writer.push(messages, note)

    def waiting(self) -> SpooledLines:
        batches = self._spool.last - self._spool.acknowledged
        # The current segment stays, even if all of it is acknowledged.
        return SpooledLines(batches, self._spool.size if batches else 0)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; False on timeout."""
        try:
            self._writer.flush(timeout_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._writer.close(0.0)

    def _refused(self, messages: int, error: LogdError) -> None:
        self.refused_lines += messages
        self._notify(f"{counted(messages, 'line')} lost, because the daemon rejects them: {error}")
