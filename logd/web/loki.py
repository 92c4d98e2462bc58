"""`POST /loki/api/v1/push`: streams of lines with labels, as Loki clients send them in JSON.

A message is JSON with the line, its own time and the labels of its stream. The labels are repeated
in each message, so the messages can be larger than the request; they have the same limit.
"""

from __future__ import annotations

import re
from functools import partial

import msgspec
from starlette.responses import JSONResponse, Response

from logd.errors import BadRequest, TooLarge
from logd.web import json_parser
from logd.web.batch_builder import PushBody, RequestQuota, TopicBatches, topic_from
from logd.web.request import HttpRequest
from logd.wire.text import encode, iso_time

LABELS = ("topic", "service_name", "service", "app", "job")  # the first present names the topic
TOPIC = "loki"
_MAX_STREAMS = 10_000  # a stream takes 13 µs, even without lines
_MAX_LABEL_BYTES = 64 * 1024  # of the labels of a stream, and of the metadata of a line, as in Loki
_TIME_NS = re.compile(r"[0-9]{1,40}")
_NOT_LOKI = (
    'not a Loki push; send {"streams": [{"stream": {"<label>": "<text>"}, "values":'
    ' [["<unix ns>", "<line>"]]}]}'
)
_NOT_A_VALUE = 'each value is ["<unix ns>", "<line>"], or with {"<name>": "<text>"} as third'
_TOO_MANY_LABELS = f"the labels of a stream or a line have at most {_MAX_LABEL_BYTES} bytes"
_Labels = dict[str, str]


class _Push(msgspec.Struct):
    streams: msgspec.Raw


class _Stream(msgspec.Struct):
    stream: msgspec.Raw
    values: msgspec.Raw


class _Value(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    time_ns: str
    line: str
    metadata: msgspec.Raw = msgspec.Raw()


async def post_streams(request: HttpRequest) -> Response:
    if "protobuf" in request.headers.get("content-type", ""):
        error = {"error": "bad-request", "text": "send JSON; protobuf is not supported"}
        return JSONResponse(error, 415)
    parse = partial(parse_streams, max_bytes=request.max_batch_bytes)
    async with request.parse_body(parse) as topics:
        for topic, messages in topics.items():
            await request.push(topic, messages)
    return Response(status_code=204)


def parse_streams(body: bytes, max_bytes: int) -> dict[str, PushBody]:
    """The messages of each topic."""
    topics = TopicBatches(RequestQuota(max_bytes))
    push = json_parser.decode(body, _Push, _NOT_LOKI)
    streams = json_parser.elements(memoryview(push.streams), _NOT_LOKI)
    for number, element in enumerate(streams):
        if number == _MAX_STREAMS:
            raise TooLarge(f"a push has at most {_MAX_STREAMS} streams; send less at a time")
        stream = json_parser.decode(element, _Stream, _NOT_LOKI)
        labels = _labels(stream.stream)
        labels_json = encode(labels).encode()
        name = next((labels[label] for label in LABELS if labels.get(label)), TOPIC)
        messages = topics.builder(topic_from(name))
        for value in json_parser.elements(memoryview(stream.values), _NOT_A_VALUE):
            messages.add(_message(labels_json, value))
    return topics.build()


def _labels(raw: msgspec.Raw) -> _Labels:
    view = memoryview(raw)
    if len(view) > _MAX_LABEL_BYTES:
        raise BadRequest(_TOO_MANY_LABELS)
    return json_parser.decode(view, _Labels, _NOT_LOKI)


def _message(labels: bytes, element: memoryview) -> bytes:
    value = json_parser.decode(element, _Value, _NOT_A_VALUE)
    if not _TIME_NS.fullmatch(value.time_ns):
        raise BadRequest(_NOT_A_VALUE)
    time = encode(iso_time(int(value.time_ns) // 1_000_000)).encode()
    metadata = b""
    if len(memoryview(value.metadata)):
        metadata = b', "metadata": %s' % encode(_labels(value.metadata)).encode()
    line = msgspec.json.encode(value.line)
    del value  # a line can take four times its size as text
    return b'{"time": %s, "labels": %s%s, "line": %s}' % (time, labels, metadata, line)
