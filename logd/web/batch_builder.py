"""Messages of a request on their way to a topic: the body of a batch, and no object per message.

Always: what the messages of one request take is bounded, in bytes and in number, and the limit is
checked before memory is used. Large bodies are worked on by a thread, in steps of a few
milliseconds: one long call would hold the interpreter lock, and the event loop with it.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from logd.batch import LINES, SIZED, Buffer, body_sum, count_lf
from logd.errors import BadRequest, TooLarge

# Of one body that is taken apart: 33 bytes each in a full body of 8 MiB. A message costs a
# microsecond, so that is a quarter of a second on a thread.
MAX_MESSAGES = 250_000
_STEP_BYTES = 256 * 1024
_STEP_MESSAGES = 4096


class Packed(NamedTuple):
    """Messages as they are pushed."""

    body: Buffer
    enc: str
    messages: int
    sum: str


class Room:
    """What all messages of one request may take together."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._bytes, self._messages = max_bytes, MAX_MESSAGES

    def take(self, size: int) -> None:
        self._bytes -= size
        self.count()
        if self._bytes < 0:
            raise TooLarge(
                f"the messages made of one request take at most {self.max_bytes} bytes together;"
                " send less at a time"
            )

    def count(self) -> None:
        self._messages -= 1
        if self._messages < 0:
            raise too_many()


def too_many() -> TooLarge:
    return TooLarge(f"a body holds at most {MAX_MESSAGES} messages; send less at a time")


class Messages:
    """The messages for one topic, in order."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._data = bytearray()  # each message, and LF
        self._sizes = array("I")

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, message: Buffer) -> None:
        size = len(message)
        self._room.take(size + 1)
        self._data += message
        self._data += b"\n"
        self._sizes.append(size)

    def packed(self) -> Packed:
        """As lines if no message contains LF. Nothing can be added after this."""
        if count_lf(self._data) == len(self):
            return Packed(self._data, LINES, len(self), body_sum(self._data))
        body = self._sized()
        return Packed(body, SIZED, len(self), body_sum(body))

    def _sized(self) -> bytearray:
        body = bytearray()
        for at in range(0, len(self), _STEP_MESSAGES):
            body += b"%d " * len(step := self._sizes[at : at + _STEP_MESSAGES]) % tuple(step)
        body[-1:] = b"\n"
        start = 0
        with memoryview(self._data) as data:
            for size in self._sizes:
                body += data[start : start + size]
                start += size + 1
        return body


def one(message: Buffer) -> Packed:
    messages = Messages(Room(len(message) + 1))
    messages.add(message)
    return messages.packed()


def lines(body: bytes) -> Packed:
    """Each line is a message; a CR before its LF is not part of it. So the body is stored as it
    is, or nearly, and any number of lines takes the same memory."""
    if not body:
        raise BadRequest("there is no message in the body")
    packed: Buffer = body
    if not body.endswith(b"\n"):
        packed = b"%s\n" % body
    if b"\r" in body:
        packed = _without_cr(bytes(packed))
    return Packed(packed, LINES, count_lf(packed), body_sum(packed))


def _without_cr(body: bytes) -> bytearray:
    stripped, at = bytearray(), 0
    while at < len(body):
        end = at + _STEP_BYTES
        end -= body[end - 1 : end] == b"\r"  # its LF may come next
        stripped += body[at:end].replace(b"\r\n", b"\n")
        at = end
    return stripped
