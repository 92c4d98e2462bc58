"""Where a writer's batches wait until they are settled: in memory, or in a spool on disk.

Always: batches are settled in the order in which they were added. With a spool, a window of them is
in memory too, in the outbox, and only the numbers of those that somebody waits for are kept beside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from logd.client.spool import SEGMENT_BYTES, Spool
from logd.client.unacked import UnackedBatch, UnackedBatches

WINDOW_BYTES = 8 << 20  # of a spool's batches in memory at a time

Offers = list[tuple[int, Any]]  # which message of a batch, and the future that waits for it


def open_spool(directory: Path, limit_bytes: int, *, fsync: bool) -> Spool:
    """A spool with segments so small that some can be removed before the limit is reached."""
    segment_bytes = min(SEGMENT_BYTES, max(1, limit_bytes // 8))
    return Spool(directory, fsync=fsync, segment_bytes=segment_bytes)


def new_outbox(spool: Spool | None, producer: str | None, max_in_flight: int) -> UnackedBatches:
    """The outbox of a writer. With a spool it continues the producer and numbers in it."""
    if spool is None:
        is_shared = producer is not None
        return UnackedBatches(producer, is_shared=is_shared, max_in_flight=max_in_flight)
    return UnackedBatches(
        spool.producer, max_in_flight=max_in_flight, first_own=spool.last + 1, renamed=spool.rename
    )


class SendQueue:
    def __init__(self, outbox: UnackedBatches, spool: Spool | None) -> None:
        self.outbox, self._spool = outbox, spool
        self._offers: dict[int, Offers] = {}  # of batches that are in the spool alone
        self._settled = 0

    @property
    def is_done(self) -> bool:
        """Is everything that was added settled?"""
        return not self.outbox and (self._spool is None or not self._spool.unread_bytes)

    @property
    def last(self) -> int:
        """The number of the batch that was added last."""
        return self.outbox.last if self._spool is None else self._spool.last

    def is_settled(self, number: int) -> bool:
        """Has every batch up to this one been stored, or refused?"""
        return self._settled >= number or self.is_done

    @property
    def size(self) -> int:
        """Bytes that wait in memory; with a spool, bytes on disk."""
        return self.outbox.size if self._spool is None else self._spool.size

    def add(self, batch: UnackedBatch, note: str = "-") -> None:
        """Take over a batch: it has a number from then on. OSError where the spool cannot."""
        if self._spool is None:
            self.outbox.add(batch)
        else:
            batch.number = self._spool.append(batch.push, batch.messages, note)
            if batch.offers:
                self._offers[batch.number] = batch.offers

    def refill(self, topic: str) -> None:
        """Bring from the spool what is good to have in memory."""
        while self._spool is not None and self.outbox.size < WINDOW_BYTES:
            found = self._spool.read(topic)
            if found is None:
                return
            number, push, messages = found
            self.outbox.add(UnackedBatch(push, messages, self._offers.pop(number, []), number))

    def settle(self, batch: UnackedBatch) -> None:
        if self._spool is not None:
            self._spool.forget(batch.number)
        self._settled = batch.number

    def give_up(self) -> Offers:
        """Empty the memory, whatever a spool keeps; all who wait for something in it."""
        waiting = [batch.offers for batch in self.outbox.give_up()]
        waiting += self._offers.values()
        self._offers.clear()
        return [offer for offers in waiting for offer in offers]

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of the files."""
        if self._spool is not None:
            self._spool.abandon()
