"""Getting bodies to a daemon, each stored once however often it is sent.

A producer's name and the numbers of its batches are chosen so that whoever does the same work again
sends the same: the daemon then answers what it answered the first time. Where the same number comes
with another body, the work was not the same: from there on messages are stored under a name of
their own, so that none is missing, and some may be there twice.

What an answer means is `logd.client.unacked`'s business. A daemon that is away is waited for.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Self

from logd.client.backoff import RetryDeadline
from logd.client.client import Client
from logd.client.unacked import (
    Forgotten,
    Hopeless,
    Later,
    Outcome,
    PushRefused,
    UnackedBatch,
    UnackedBatches,
)
from logd.errors import Conflict, Internal, LogdError, OutOfOrder
from logd.wire import commands
from logd.wire.addresses import ConnectionLost
from logd.wire.commands import Pushed
from pyspark_logd.arrow_bodies import ArrowBody
from pyspark_logd.connections import dial
from pyspark_logd.errors import DataLoss
from pyspark_logd.options import Site
from pyspark_logd.split_reader import PATIENCE_S

BATCHES_PER_NAME = 1000  # of which the daemon remembers a few more
IN_FLIGHT = 16

_log = logging.getLogger("logd.spark")


@dataclass(slots=True)
class Line:
    """What waits for one topic, and how many names it has used up."""

    outbox: UnackedBatches
    names: int = 0


class BatchSender:
    """`send` bodies, then `close` waits until all are stored. One thread."""

    def __init__(self, site: Site, producer: str | None, *, compresses: bool) -> None:
        self._site, self._producer, self._compresses = site, producer, compresses
        self._client: Client | None = None
        self._lines: dict[str, Line] = {}
        self._sent: deque[Line] = deque()  # whose answers are due, in their order
        self._patience = RetryDeadline(PATIENCE_S, monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._settle_all()
        finally:
            self._hang_up()

    def send(self, topic: str, body: ArrowBody) -> None:
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = Line(self._outbox(0))
        if line.outbox.last >= BATCHES_PER_NAME:
            self._settle(line)
            line.names += 1
            line.outbox = self._outbox(line.names)
        push = commands.seal(topic, body.data, body.enc, compressed=self._compresses)
        line.outbox.add(UnackedBatch(push, body.messages))
        self._exchange(waits=False)
        while len(line.outbox) >= IN_FLIGHT:
            self._exchange()

    def _outbox(self, names: int) -> UnackedBatches:
        if self._producer is None:
            return UnackedBatches(max_in_flight=IN_FLIGHT)
        return UnackedBatches(f"{self._producer}.{names}", is_shared=True, max_in_flight=IN_FLIGHT)

    def _settle_all(self) -> None:
        for line in self._lines.values():
            self._settle(line)

    def _settle(self, line: Line) -> None:
        while len(line.outbox):
            self._exchange()

    def _exchange(self, *, waits: bool = True) -> None:
        """Send what may be sent, and take an answer: the next one, or only if it is here."""
        try:
            if self._client is None:
                self._client = dial(self._site)
            for line in self._lines.values():
                while (push := line.outbox.next()) is not None:
                    self._sent.append(line)
                    self._client.send(commands.push(push))
            if self._sent and (waits or self._client.readable()):
                answer = _answer(self._client)
                line = self._sent.popleft()
                self._patience.answered(monotonic())
                self._act(line, line.outbox.answered(answer))
        except ConnectionLost as error:
            self._lost(error)

    def _lost(self, error: ConnectionLost) -> None:
        self._hang_up()
        self._sent.clear()
        for line in self._lines.values():
            self._act(line, line.outbox.lost())
        sleep(self._patience.pause_s(error, monotonic()))

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def _act(self, line: Line, outcome: Outcome | None) -> None:
        match outcome:
            case Later(error):
                sleep(self._patience.pause_s(error, monotonic()))
                line.outbox.go_on()
            case PushRefused(_, error):
                raise error
            case Forgotten():
                raise DataLoss("the daemon's machine lost what was written; run the query again")
            case Hopeless(error):
                if not isinstance(error, Conflict | OutOfOrder | Internal):
                    raise error
                self._rename(line, error)

    def _rename(self, line: Line, error: LogdError) -> None:
        """Not the same work as before: store it all the same."""
        _log.warning(
            "other rows than in an earlier try (%s): some messages may be stored twice", error.text
        )
        batches = line.outbox.give_up()
        line.outbox = UnackedBatches(max_in_flight=IN_FLIGHT)
        for batch in batches:
            line.outbox.add(batch)


def _answer(client: Client) -> Pushed | LogdError:
    try:
        answer: Pushed = client.receive()
    except LogdError as error:
        return error
    return answer
