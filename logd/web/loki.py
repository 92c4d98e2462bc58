"""What Loki's clients send, as JSON: streams of lines with labels.

A message is JSON with the line, its own time and the labels of its stream. The labels are repeated
in each message, so the messages can be larger than the request; they have the same limit.
"""

from __future__ import annotations

import re

import msgspec

from logd.errors import BadRequest, TooLarge
from logd.web import json_parser
from logd.web.batch_builder import Messages, Packed, Room
from logd.web.ingestion import messages_for, topic_for
from logd.wire.text import encode, iso_time

LABELS = ("topic", "service_name", "service", "app", "job")  # the first there is names the topic
TOPIC = "loki"
_MAX_STREAMS = 10_000  # a stream costs 13 µs, even if it has no line
_MAX_LABEL_BYTES = 64 * 1024  # of the labels of a stream, and of the metadata of a line, as in Loki
_TIME_NS = re.compile(r"[0-9]{1,40}")
_NOT_LOKI = (
    'not a Loki push; send {"streams": [{"stream": {"<label>": "<text>"}, "values":'
    ' [["<unix ns>", "<line>"]]}]}'
)
_NOT_A_VALUE = 'each value is ["<unix ns>", "<line>"], or with {"<name>": "<text>"} as third'
_TOO_MANY_LABELS = f"the labels of a stream or a line have at most {_MAX_LABEL_BYTES} bytes"
_Texts = dict[str, str]


class _Push(msgspec.Struct):
    streams: msgspec.Raw


class _Stream(msgspec.Struct):
    stream: msgspec.Raw
    values: msgspec.Raw


class _Value(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    time_ns: str
    line: str
    metadata: msgspec.Raw = msgspec.Raw()


def messages_of(body: bytes, max_bytes: int) -> dict[str, Packed]:
    """Messages by topic."""
    room = Room(max_bytes)
    topics: dict[str, Messages] = {}
    pushed = json_parser.decode(body, _Push, _NOT_LOKI)
    streams = json_parser.elements(memoryview(pushed.streams), _NOT_LOKI)
    for number, element in enumerate(streams):
        if number == _MAX_STREAMS:
            raise TooLarge(f"a push has at most {_MAX_STREAMS} streams; send less at a time")
        stream = json_parser.decode(element, _Stream, _NOT_LOKI)
        labels = _texts(stream.stream)
        shown = encode(labels).encode()
        messages = messages_for(topics, _topic(labels), room)
        for value in json_parser.elements(memoryview(stream.values), _NOT_A_VALUE):
            messages.add(_message(shown, value))
    return {topic: messages.packed() for topic, messages in topics.items() if len(messages)}


def _topic(labels: _Texts) -> str:
    return topic_for(next((labels[label] for label in LABELS if labels.get(label)), TOPIC))


def _texts(raw: msgspec.Raw) -> _Texts:
    view = memoryview(raw)
    if len(view) > _MAX_LABEL_BYTES:
        raise BadRequest(_TOO_MANY_LABELS)
    return json_parser.decode(view, _Texts, _NOT_LOKI)


def _message(labels: bytes, element: memoryview) -> bytes:
    value = json_parser.decode(element, _Value, _NOT_A_VALUE)
    if not _TIME_NS.fullmatch(value.time_ns):
        raise BadRequest(_NOT_A_VALUE)
    when = encode(iso_time(int(value.time_ns) // 1_000_000)).encode()
    metadata = b""
    if len(memoryview(value.metadata)):
        metadata = b', "metadata": %s' % encode(_texts(value.metadata)).encode()
    line = msgspec.json.encode(value.line)
    del value  # a line may take four times its size as text
    return b'{"time": %s, "labels": %s%s, "line": %s}' % (when, labels, metadata, line)
