"""Sends bodies to a daemon so that each is stored once, however often it is sent.

The producer name and the numbers of the batches are deterministic: a repeated task sends the same
pushes, and the daemon repeats its first answers. If a number arrives with another body, the task
had other rows than before. The remaining messages are then sent without ids, so that none is
missing, although some may be stored twice.

`logd.client.unacked` interprets the answers. Sending is retried while the daemon is unavailable.
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
    BatchesLost,
    Outcome,
    PushRefused,
    RetryLater,
    UnackedBatch,
    UnackedBatches,
    WriterRefused,
)
from logd.errors import Conflict, Internal, LogdError, OutOfOrder
from logd.wire import commands
from logd.wire.addresses import ConnectionLost
from logd.wire.commands import Pushed
from pyspark_logd.arrow_batches import ArrowBody
from pyspark_logd.errors import DataLoss
from pyspark_logd.options import Location
from pyspark_logd.split_reader import RETRY_TIMEOUT_S
from pyspark_logd.topic_sources import connect

BATCHES_PER_NAME = 1000  # the daemon remembers a few more
IN_FLIGHT = 16

_log = logging.getLogger("logd.spark")


@dataclass(slots=True)
class TopicSendState:
    """The unacknowledged batches of a topic, and how many producer names it has used before."""

    unacked: UnackedBatches
    names_used: int = 0


class BatchSender:
    """A context manager: `send` bodies; its end waits until all are stored. Not thread-safe."""

    def __init__(self, location: Location, producer: str | None, *, compresses: bool) -> None:
        self._location, self._producer, self._compresses = location, producer, compresses
        self._client: Client | None = None
        self._topics: dict[str, TopicSendState] = {}
        self._sent: deque[TopicSendState] = deque()  # one entry per expected answer, in order
        self._deadline = RetryDeadline(RETRY_TIMEOUT_S, monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            for topic in self._topics.values() if kind is None else ():
                self._flush(topic)
        finally:
            self._disconnect()

    def send(self, topic: str, body: ArrowBody) -> None:
        batches = self._topics.get(topic)
        if batches is None:
            batches = self._topics[topic] = TopicSendState(self._new_unacked(0))
        if batches.unacked.last >= BATCHES_PER_NAME:
            self._flush(batches)
            batches.names_used += 1
            batches.unacked = self._new_unacked(batches.names_used)
        push = commands.seal(topic, body.data, body.enc, compressed=self._compresses)
        batches.unacked.add(UnackedBatch(push, body.messages))
        self._exchange(waits=False)
        while len(batches.unacked) >= IN_FLIGHT:
            self._exchange()

    def _new_unacked(self, names_used: int) -> UnackedBatches:
        if self._producer is None:
            return UnackedBatches(max_in_flight=IN_FLIGHT)
        return UnackedBatches(
            f"{self._producer}.{names_used}", is_shared=True, max_in_flight=IN_FLIGHT
        )

    def _flush(self, topic: TopicSendState) -> None:
        while len(topic.unacked):
            self._exchange()

    def _exchange(self, *, waits: bool = True) -> None:
        """Send the batches that may be sent, and process one answer, if there is one or `waits`."""
        try:
            if self._client is None:
                self._client = connect(self._location)
            for topic in self._topics.values():
                while (push := topic.unacked.next()) is not None:
                    self._sent.append(topic)
                    self._client.send(commands.push(push))
            if self._sent and (waits or self._client.readable()):
                answer = _answer(self._client)
                topic = self._sent.popleft()
                self._deadline.answered(monotonic())
                self._apply(topic, topic.unacked.answered(answer))
        except ConnectionLost as error:
            self._reconnect(error)

    def _reconnect(self, error: ConnectionLost) -> None:
        self._disconnect()
        self._sent.clear()
        for topic in self._topics.values():
            self._apply(topic, topic.unacked.lost())
        sleep(self._deadline.pause_s(error, monotonic()))

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def _apply(self, topic: TopicSendState, outcome: Outcome | None) -> None:
        match outcome:
            case RetryLater(error):
                sleep(self._deadline.pause_s(error, monotonic()))
                topic.unacked.go_on()
            case PushRefused(_, error):
                raise error
            case BatchesLost():
                raise DataLoss(
                    "the machine of the daemon lost written messages; run the query again"
                )
            case WriterRefused(error):
                if not isinstance(error, Conflict | OutOfOrder | Internal):
                    raise error
                self._drop_ids(topic, error)

    def _drop_ids(self, topic: TopicSendState, error: LogdError) -> None:
        """The rows differ from those of an earlier attempt: store them anyway."""
        _log.warning(
            "the rows differ from an earlier attempt (%s); some messages may be stored twice",
            error.text,
        )
        batches = topic.unacked.give_up()
        topic.unacked = UnackedBatches(max_in_flight=IN_FLIGHT)
        for batch in batches:
            topic.unacked.add(batch)


def _answer(client: Client) -> Pushed | LogdError:
    try:
        answer: Pushed = client.receive()
    except LogdError as error:
        return error
    return answer
