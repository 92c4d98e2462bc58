"""What others send: lines and JSON to a topic, the Loki push API, the Elasticsearch bulk form.

Each says how it becomes messages of topics; the original line or document is always in the message.
All messages of a request that go to one topic are one batch there: stored together, or not at all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from logd.asking import Asking
from logd.batch import NO_ID, body_sum, encode_body
from logd.commands import Pushed
from logd.errors import TRY_AGAIN, BadRequest, LogdError
from logd.requests import Push, producer_id, topic_name
from logd.shown import encode, iso_time

# Not UTF-8 and nested too deeply have errors of their own.
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_TIME_NS = re.compile(r"[0-9]{1,40}")
LOKI_LABELS = ("topic", "service_name", "service", "app", "job")  # the first there is names it
LOKI_TOPIC = "loki"
_MAX_TOPICS = 100  # in one request


async def push(asking: Asking, topic: str, messages: list[bytes], id_: str = NO_ID) -> Pushed:
    if not messages:
        raise BadRequest("there is no message in the body")
    body, enc = encode_body(messages)
    return await asking.push(Push(topic, body, enc, len(messages), body_sum(body), id_))


def checked_id(text: str | None) -> str:
    return NO_ID if text is None else producer_id(text.encode("ascii", "replace"))


def refuse_query(query: Mapping[str, str]) -> None:
    """Python's HTTPHandler sends records this way by default, and ignores what it is answered."""
    if query:
        raise BadRequest(
            f"GET /topics/<topic> takes no parameters, but {next(iter(query))[:40]!r} was sent;"
            ' to store a message use POST (Python\'s HTTPHandler: method="POST")'
        )


def messages_of(body: bytes, kind: str) -> list[bytes]:
    """By the content type: each element of a JSON array, one JSON value, or each line.

    A urlencoded form is a line, since its line ends are encoded; what `curl -d` sends under that
    content type is usually text.
    """
    kind = kind.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return _values(body)
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    lines = [line.removesuffix(b"\r") for line in lines]
    if kind in ("application/x-ndjson", "application/jsonl"):
        lines = [line for line in lines if line]
        for number, line in enumerate(lines, 1):
            _check_json(line, f"line {number}")
    return lines


def _values(body: bytes) -> list[bytes]:
    """The elements of an array, or the only value; as sent, except that a string is its text."""
    body = body.strip()
    try:
        if body[:1] != b"[":
            msgspec.json.decode(body, type=msgspec.Raw)
            return [_text(body)]
        return [_text(bytes(one)) for one in msgspec.json.decode(body, type=list[msgspec.Raw])]
    except _NOT_JSON as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


def document(body: bytes) -> bytes:
    """A body that is one JSON object."""
    body = body.strip()
    _check_json(body, "the document")
    if body[:1] != b"{":
        raise BadRequest("a document is a JSON object")
    return body


def _text(element: bytes) -> bytes:
    element = element.strip()
    return msgspec.json.decode(element, type=str).encode() if element[:1] == b'"' else element


def _check_json(line: bytes, where: str) -> None:
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except _NOT_JSON as error:
        raise BadRequest(f"{where} is not JSON: {error}") from None


def topic_for(name: str) -> str:
    """A topic's name made of somebody else's: what may not be in one becomes a dash."""
    return topic_name(_NOT_A_NAME.sub("-", name).strip("-.")[:128].encode())


# -- Loki ---------------------------------------------------------------------------------------


class _Stream(msgspec.Struct):
    stream: dict[str, str]
    values: list[list[Any]]


class _LokiPush(msgspec.Struct):
    streams: list[_Stream]


def loki(body: bytes) -> dict[str, list[bytes]]:
    """Messages by topic: JSON with the line, its own time and its labels."""
    try:
        streams = msgspec.json.decode(body, type=_LokiPush).streams
    except _NOT_JSON as error:
        raise BadRequest(f"not a Loki push: {error}") from None
    topics: dict[str, list[bytes]] = {}
    for stream in streams:
        topic = _loki_topic(stream.stream)
        labels = encode(stream.stream)
        topics.setdefault(topic, []).extend(_loki_entry(labels, value) for value in stream.values)
    return _not_too_many(topics)


def _loki_topic(labels: dict[str, str]) -> str:
    name = next((labels[label] for label in LOKI_LABELS if labels.get(label)), LOKI_TOPIC)
    return topic_for(name)


def _loki_entry(labels: str, value: list[Any]) -> bytes:
    match value:
        case [str(time_ns), str(line), *more] if _TIME_NS.fullmatch(time_ns):
            when = encode(iso_time(int(time_ns) // 1_000_000))
            extra = f', "metadata": {encode(more[0])}' if more else ""
            text = f'{{"time": {when}, "labels": {labels}{extra}, "line": {encode(line)}}}'
            return text.encode("utf-8", "surrogatepass")
    raise BadRequest('each value is ["<unix ns>", "<line>"]')


# -- Elasticsearch ------------------------------------------------------------------------------


class Item:
    """One document of a bulk request, and what became of it."""

    __slots__ = ("action", "document", "error", "index", "offset")

    def __init__(self, action: str, index: str, document: bytes = b"") -> None:
        self.action, self.index, self.document = action, index, document
        self.offset = 0
        self.error: LogdError | None = None

    def result(self) -> dict[str, Any]:
        if self.error is None:
            done = {"_index": self.index, "_id": str(self.offset), "status": 201}
            return {self.action: done | {"result": "created"}}
        reason = {"type": self.error.code, "reason": self.error.text}
        # Senders of this form repeat a document for one status alone.
        status = 429 if isinstance(self.error, TRY_AGAIN) else self.error.status
        return {self.action: {"_index": self.index, "status": status, "error": reason}}


def bulk_items(body: bytes, default_index: str | None) -> list[Item]:
    items: list[Item] = []
    lines = iter(line for line in body.split(b"\n") if line.strip())
    for line in lines:
        action, index = _action(line, default_index)
        item = Item(action, index)
        items.append(item)
        if action == "delete":
            item.error = BadRequest("a log deletes nothing")
            continue
        document = next(lines, None)
        if document is None:
            raise BadRequest("the last action has no document")
        item.document = document.removesuffix(b"\r")
        if action == "update":
            item.error = BadRequest("a log changes nothing that is stored; use create")
            continue
        _check_json(item.document, "a document")
    return items


def _action(line: bytes, default_index: str | None) -> tuple[str, str]:
    try:
        action = msgspec.json.decode(line, type=dict[str, dict[str, Any]])
    except _NOT_JSON as error:
        raise BadRequest(f"not an action of the bulk form: {error}") from None
    if len(action) != 1 or not action.keys() <= {"index", "create", "update", "delete"}:
        raise BadRequest("an action is index, create, update or delete")
    ((name, options),) = action.items()
    index = options.get("_index", default_index)
    if not isinstance(index, str):
        raise BadRequest("an action without _index")
    return name, index


async def bulk(asking: Asking, items: list[Item]) -> tuple[dict[str, Any], LogdError | None]:
    """Store what can be stored, a batch for each topic; say of each document what became of it.

    Also the reason, where nothing at all is stored and all of it may be sent again.
    """
    start_s = time.monotonic()
    topics: dict[str, list[Item]] = {}
    for item in items:
        if item.error is None:
            try:
                topics.setdefault(topic_for(item.index), []).append(item)
            except LogdError as error:
                item.error = error
    for topic, kept in _not_too_many(topics).items():
        try:
            pushed = await push(asking, topic, [item.document for item in kept])
        except LogdError as error:
            for item in kept:
                item.error = error
        else:
            for i, item in enumerate(kept):
                item.offset = pushed.offset + i
    took_ms = int((time.monotonic() - start_s) * 1000)
    failed = [item.error for item in items if item.error is not None]
    again = len(failed) == len(items) and all(isinstance(error, TRY_AGAIN) for error in failed)
    told = {"took": took_ms, "errors": bool(failed), "items": [item.result() for item in items]}
    return told, failed[0] if failed and again else None


def _not_too_many(topics: dict[str, Any]) -> dict[str, Any]:
    if len(topics) > _MAX_TOPICS:
        raise BadRequest(f"one request is for at most {_MAX_TOPICS} topics")
    return topics
