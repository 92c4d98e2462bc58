"""What is sent to a topic over HTTP: lines, NDJSON and JSON; and how it gets there.

The original line or value is always the message. All messages of a request that go to one topic are
one batch there: stored together, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from logd.batch import NO_ID, count_lf
from logd.errors import BadRequest
from logd.web import json_parser
from logd.web.async_service import AsyncService
from logd.web.batch_builder import MAX_MESSAGES, Messages, Packed, Room, lines, one, too_many
from logd.wire.commands import Pushed
from logd.wire.requests import Push, producer_id, topic_name

T = TypeVar("T")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_TOPICS = 100  # in one request
_INLINE_BYTES = 8 * 1024  # taken apart in 2 ms at most, without waiting for a thread
_NO_JSON = "the body is not JSON; send a JSON value, or lines with Content-Type: text/plain"


async def parse(asking: AsyncService, body: bytes, work: Callable[[], T]) -> T:
    """What `work` makes of a body; on a thread unless the body is small."""
    return work() if len(body) <= _INLINE_BYTES else await asking.compute(work)


async def push(asking: AsyncService, topic: str, packed: Packed, id_: str = NO_ID) -> Pushed:
    if not packed.messages:
        raise BadRequest("there is no message in the body")
    return await asking.push(Push(topic, packed.body, packed.enc, packed.messages, packed.sum, id_))


def checked_id(text: str | None) -> str:
    return NO_ID if text is None else producer_id(text.encode("ascii", "replace"))


def topic_for(name: str) -> str:
    """A topic's name made of another system's: characters that are not allowed become dashes."""
    return topic_name(_NOT_A_NAME.sub("-", name).strip("-.")[:128].encode())


def messages_for(topics: dict[str, Messages], topic: str, room: Room) -> Messages:
    """The messages of this topic; BadRequest where a request is for too many topics."""
    messages = topics.get(topic)
    if messages is None:
        if len(topics) == _MAX_TOPICS:
            raise BadRequest(f"one request is for at most {_MAX_TOPICS} topics")
        messages = topics[topic] = Messages(room)
    return messages


def refuse_query(query: Mapping[str, str]) -> None:
    """Python's HTTPHandler sends records this way by default, and ignores what it is answered."""
    if query:
        raise BadRequest(
            f"GET /topics/<topic> takes no parameters, but {next(iter(query))[:40]!r} was sent;"
            ' to store a message use POST (Python\'s HTTPHandler: method="POST")'
        )


# -- the body of a push -------------------------------------------------------------------------


def messages_of(body: bytes, kind: str, max_bytes: int) -> Packed:
    """By the content type: each element of a JSON array, one JSON value, or each line.

    A urlencoded form is a line, since its line ends are encoded; what `curl -d` sends under that
    content type is usually text.
    """
    kind = kind.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return _values(body, Room(max_bytes))
    if kind in ("application/x-ndjson", "application/jsonl"):
        return _ndjson(body, Room(max_bytes + 1))  # the last LF may be missing
    return lines(body)


def _ndjson(body: bytes, room: Room) -> Packed:
    messages = Messages(room)
    for number, line in enumerate(split(body), 1):
        if line:
            json_parser.check(line, f"line {number} is not JSON")
            messages.add(line)
    return messages.packed()


def split(body: bytes, lines_per_message: int = 1) -> Iterator[bytes]:
    """The lines of a body, one at a time."""
    if count_lf(body) > MAX_MESSAGES * lines_per_message:
        raise too_many()
    at = 0
    while at < len(body):
        end = body.find(b"\n", at)
        end = len(body) if end < 0 else end
        yield body[at:end].removesuffix(b"\r")
        at = end + 1


def _values(body: bytes, room: Room) -> Packed:
    """The elements of an array, or the only value; as sent, except that a string is its text."""
    json_parser.check(body, _NO_JSON)
    value = memoryview(body.strip())
    if value[0] != json_parser.ARRAY:
        return one(json_parser.text(value))
    messages = Messages(room)
    for element in json_parser.elements(value, _NO_JSON):
        messages.add(json_parser.text(element))
    return messages.packed()


def document(body: bytes) -> Packed:
    """A body that is one JSON object."""
    json_parser.check(body, "the document is not JSON")
    body = body.strip()
    if body[:1] != b"{":
        raise BadRequest("a document is a JSON object")
    return one(body)
