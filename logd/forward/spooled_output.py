"""The way out: a `Writer` with a spool, as the forwarder wants it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from logd.client.delivery import Loss
from logd.client.spool import Spool
from logd.client.writer import Writer
from logd.errors import LogdError
from logd.wire.addresses import Target
from logd.wire.text import counted

Say = Callable[[str], None]

# The forwarder itself stops reading when its limit is reached; the writer must never block it.
_NO_LIMIT = 1 << 62


class Leftover(NamedTuple):
    """What an earlier life left in the spool: the newest number, and the notes from some on."""

    last: int
    notes: list[tuple[int, str]]


def leftover(spool: Path, after: int) -> Leftover:
    """To be looked at before a writer has the spool: it may remove batches at once."""
    opened = Spool(spool, fsync=True)
    try:
        return Leftover(opened.last, list(opened.notes(after)))
    finally:
        opened.close()


class SpooledLines(NamedTuple):
    batches: int
    bytes: int


class SpooledOutput:
    """Batches are on disk when `push` returns, are sent in order, and go when acknowledged."""

    def __init__(self, target: Target, topic: str, spool: Path, say: Say) -> None:
        self._say = say
        self._writer = Writer(
            target,
            topic,
            spool=spool,
            spool_bytes=_NO_LIMIT,
            spool_fsync=True,
            on_loss=self._lost,
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
        # A segment stays as long as it grows, though all in it be acknowledged.
        return SpooledLines(batches, self._spool.size if batches else 0)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; False when the time is up first."""
        try:
            self._writer.flush(timeout_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._writer.close(0.0)

    def _refused(self, messages: int, error: LogdError) -> None:
        self.refused_lines += messages
        self._say(f"{counted(messages, 'line')} lost, the daemon will never take them: {error}")

    def _lost(self, loss: Loss) -> None:
        self._say(str(loss))
