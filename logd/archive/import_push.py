"""Pushes segments of archived messages so that each is stored once, however often it is pushed.

The producer name of a segment consists of the topic id and its offsets; its batches are numbered
from 1, and only its messages determine them. So a repeated segment consists of the same pushes, and
the daemon stores only those that it does not have. The first batch of a segment is sent alone,
since a daemon accepts any number from an unknown producer.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic, sleep

from logd.batch import body_sum, encode_body
from logd.client.backoff import RETRYABLE, RetryDeadline
from logd.client.client import Client
from logd.errors import NotFound, OutOfOrder
from logd.wire import commands
from logd.wire.addresses import Target
from logd.wire.offset_ranges import OffsetRange
from logd.wire.requests import Push

BATCH_BYTES = 256 << 10
BATCH_MESSAGES = 4096
IN_FLIGHT = 16
RETRY_TIMEOUT_S = 60.0
_LAST = re.compile(r"last=([0-9]{1,19})\b")


def batches(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    """This division must never change: a daemon may remember batches of an earlier version."""
    batch: list[bytes] = []
    size = 0
    for message in messages:
        if batch and (size + len(message) > BATCH_BYTES or len(batch) == BATCH_MESSAGES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message)
    if batch:
        yield batch


def producer(topic_id: str, segment: OffsetRange) -> str:
    return f"i{topic_id[:32]}.{segment.first:x}.{segment.next - segment.first:x}"


class ImportPush:
    """Pushes to one topic over one connection, and reconnects when it is lost."""

    def __init__(self, address: Target, topic: str) -> None:
        self._address, self._topic = address, topic
        self._client: Client | None = None
        self._deadline = RetryDeadline(RETRY_TIMEOUT_S, monotonic())
        self._began = self._next()  # earlier offsets were stored by previous runs

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def topic_id(self) -> str:
        return self._connected().stats(self._topic)["id"]

    def push(self, topic_id: str, segment: OffsetRange, read: Callable[[], Iterable[bytes]]) -> int:
        """The number of messages that the daemon did not have.

        After an error, the whole segment is read and pushed again.
        """
        name = producer(topic_id, segment)
        while True:
            try:
                return self._push(name, read())
            except RETRYABLE as error:
                self.close()
                sleep(self._deadline.pause_s(error, monotonic()))
            except BaseException:
                self.close()  # replies may still arrive on it
                raise

    def _push(self, name: str, messages: Iterable[bytes]) -> int:
        client, sent, written = self._connected(), deque[int](), 0
        for number, batch in enumerate(batches(messages), 1):
            body, enc = encode_body(batch)
            id_ = f"{name}:{number}"
            push = Push(self._topic, body, enc, len(batch), body_sum(body), id_)
            client.send(commands.push(push))
            sent.append(number)
            if number == 1 or len(sent) >= IN_FLIGHT:
                written += self._answer(client, sent.popleft())
        while sent:
            written += self._answer(client, sent.popleft())
        return written

    def _answer(self, client: Client, number: int) -> int:
        try:
            stored = client.receive()
        except OutOfOrder as error:
            last = _LAST.search(error.text)
            if last is None or int(last[1]) < number:
                raise
            return 0  # stored so long ago that the daemon remembers only the last number
        self._deadline.answered(monotonic())
        return stored.messages if stored.offset >= self._began else 0

    def _next(self) -> int:
        try:
            return int(self._connected().stats(self._topic)["next"])
        except NotFound:
            return 0  # the first push creates it

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self._address)
        return self._client
