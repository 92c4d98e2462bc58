"""Builds the bodies of batches from the messages in a request, without an object per message.

The messages of one request are limited in bytes and in number, and the limit is checked before
memory is used. Large bodies are processed on a thread, in steps of a few milliseconds: one long
call would hold the interpreter lock and block the event loop. Imports nothing that knows HTTP.
"""

from __future__ import annotations

import re
from array import array
from typing import NamedTuple

from logd.batch import LINES, SIZED, Buffer, body_sum, count_lf
from logd.errors import BadRequest, TooLarge
from logd.wire.requests import topic_name

# 33 bytes per message in a full body of 8 MiB. A message takes a microsecond, so this is a quarter
# of a second on a thread.
MAX_MESSAGES = 250_000
_MAX_TOPICS = 100
_STEP_BYTES = 256 * 1024
_STEP_MESSAGES = 4096
_INVALID_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class PushBody(NamedTuple):
    """The body of a batch to be pushed."""

    data: Buffer
    enc: str
    messages: int
    sum: str


class RequestQuota:
    """The bytes and messages that all batches of one request may still use."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._bytes, self._messages = max_bytes, MAX_MESSAGES

    def use(self, size: int) -> None:
        self._bytes -= size
        self.count_message()
        if self._bytes < 0:
            raise TooLarge(
                f"the messages of one request take at most {self.max_bytes} bytes in total;"
                " send less at a time"
            )

    def count_message(self) -> None:
        self._messages -= 1
        if self._messages < 0:
            raise too_many_messages()


def too_many_messages() -> TooLarge:
    return TooLarge(f"a body contains at most {MAX_MESSAGES} messages; send less at a time")


class BatchBuilder:
    """The messages for one topic, in order."""

    def __init__(self, quota: RequestQuota) -> None:
        self._quota = quota
        self._data = bytearray()  # each message and LF
        self._sizes = array("I")

    def add(self, message: Buffer) -> None:
        size = len(message)
        self._quota.use(size + 1)
        self._data += message
        self._data += b"\n"
        self._sizes.append(size)

    def build(self) -> PushBody:
        """As lines if no message contains LF. Nothing can be added afterwards."""
        count = len(self._sizes)
        if count_lf(self._data) == count:
            return PushBody(self._data, LINES, count, body_sum(self._data))
        body = self._sized()
        return PushBody(body, SIZED, count, body_sum(body))

    def _sized(self) -> bytearray:
        body = bytearray()
        for at in range(0, len(self._sizes), _STEP_MESSAGES):
            body += b"%d " * len(step := self._sizes[at : at + _STEP_MESSAGES]) % tuple(step)
        body[-1:] = b"\n"
        start = 0
        with memoryview(self._data) as data:
            for size in self._sizes:
                body += data[start : start + size]
                start += size + 1
        return body


class TopicBatches:
    """One batch for each topic that a request names."""

    def __init__(self, quota: RequestQuota) -> None:
        self._quota = quota
        self._builders: dict[str, BatchBuilder] = {}

    def builder(self, topic: str) -> BatchBuilder:
        builder = self._builders.get(topic)
        if builder is None:
            if len(self._builders) == _MAX_TOPICS:
                raise BadRequest(f"one request names at most {_MAX_TOPICS} topics")
            builder = self._builders[topic] = BatchBuilder(self._quota)
        return builder

    def build(self) -> dict[str, PushBody]:
        """By topic, without topics that got no message."""
        bodies = {topic: builder.build() for topic, builder in self._builders.items()}
        return {topic: body for topic, body in bodies.items() if body.messages}


def topic_from(name: str) -> str:
    """Make a topic name of another system's name: invalid characters become dashes."""
    return topic_name(_INVALID_IN_NAME.sub("-", name).strip("-.")[:128].encode())


def build_one(message: Buffer) -> PushBody:
    builder = BatchBuilder(RequestQuota(len(message) + 1))
    builder.add(message)
    return builder.build()


def build_lines(body: bytes) -> PushBody:
    """Each line is a message, without a CR before its LF. The body is stored almost as it is, so
    the number of lines does not matter."""
    if not body:
        raise BadRequest("the body contains no message")
    data: Buffer = body
    if not body.endswith(b"\n"):
        data = b"%s\n" % body
    if b"\r" in body:
        data = _without_cr(bytes(data))
    return PushBody(data, LINES, count_lf(data), body_sum(data))


def _without_cr(body: bytes) -> bytearray:
    stripped, at = bytearray(), 0
    while at < len(body):
        end = at + _STEP_BYTES
        end -= body[end - 1 : end] == b"\r"  # its LF may follow
        stripped += body[at:end].replace(b"\r\n", b"\n")
        at = end
    return stripped
