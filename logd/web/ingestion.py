"""`POST /topics/<topic>`: store lines, NDJSON or JSON.

The original line or value is the message. All messages of a request become one batch: either all of
them are stored or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from starlette.responses import JSONResponse, Response

from logd.batch import NO_ID, count_lf
from logd.errors import BadRequest
from logd.web import json_parser
from logd.web.batch_builder import (
    MAX_MESSAGES,
    BatchBuilder,
    PushBody,
    RequestQuota,
    build_lines,
    build_one,
    too_many_messages,
)
from logd.web.request import HttpRequest
from logd.wire.requests import producer_id

_NOT_JSON = "the body is not JSON; send a JSON value, or lines with Content-Type: text/plain"


async def post_messages(request: HttpRequest) -> Response:
    topic, id_ = request.topic, request.query_params.get("id")
    id_ = NO_ID if id_ is None else producer_id(id_.encode("ascii", "replace"))
    content_type = request.headers.get("content-type", "")
    parse = partial(parse_messages, content_type=content_type, max_bytes=request.max_batch_bytes)
    async with request.parse_body(parse) as messages:
        pushed = await request.push(topic, messages, id_)
    return JSONResponse(pushed._asdict())


def parse_messages(body: bytes, content_type: str, max_bytes: int) -> PushBody:
    """By the content type: each element of a JSON array, one JSON value, or each line.

    A urlencoded form is one line, since its line ends are encoded. The text that `curl -d` sends
    has this content type as well.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return _parse_json(body, RequestQuota(max_bytes))
    if kind in ("application/x-ndjson", "application/jsonl"):
        return _parse_ndjson(body, RequestQuota(max_bytes + 1))  # the last LF may be missing
    return build_lines(body)


def _parse_ndjson(body: bytes, quota: RequestQuota) -> PushBody:
    messages = BatchBuilder(quota)
    for number, line in enumerate(split_lines(body), 1):
        if line:
            json_parser.check(line, f"line {number} is not JSON")
            messages.add(line)
    return messages.build()


def split_lines(body: bytes, lines_per_message: int = 1) -> Iterator[bytes]:
    """The lines of a body, one at a time."""
    if count_lf(body) > MAX_MESSAGES * lines_per_message:
        raise too_many_messages()
    at = 0
    while at < len(body):
        end = body.find(b"\n", at)
        end = len(body) if end < 0 else end
        yield body[at:end].removesuffix(b"\r")
        at = end + 1


def _parse_json(body: bytes, quota: RequestQuota) -> PushBody:
    """The elements of an array, or the only value: as sent, except that a string is unquoted."""
    json_parser.check(body, _NOT_JSON)
    value = memoryview(body.strip())
    if value[0] != json_parser.ARRAY:
        return build_one(json_parser.text(value))
    messages = BatchBuilder(quota)
    for element in json_parser.elements(value, _NOT_JSON):
        messages.add(json_parser.text(element))
    return messages.build()


def parse_document(body: bytes) -> PushBody:
    """A body that is one JSON object."""
    json_parser.check(body, "the document is not JSON")
    body = body.strip()
    if body[:1] != b"{":
        raise BadRequest("a document must be a JSON object")
    return build_one(body)
