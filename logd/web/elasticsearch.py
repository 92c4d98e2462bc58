"""The routes of Elasticsearch and OpenSearch clients: `_bulk`, `_doc`, `_refresh`, `_cat/health`.

The official clients reject a server whose responses lack `X-Elastic-Product`, after they have sent
their documents; many request `GET /` for the version first. A bulk request may contain as many
documents as any body may contain messages. Four bytes are kept for each, the number of its action
and index: its result follows from these and from the result of its topic's batch, and is made while
the response is sent.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

import msgspec
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from logd.errors import TRY_AGAIN, BadRequest, LogdError
from logd.web import json_parser
from logd.web.batch_builder import PushBody, RequestQuota, TopicBatches, topic_from
from logd.web.error_response import error_headers
from logd.web.ingestion import parse_document, split_lines
from logd.web.request import HttpRequest
from logd.web.status import not_ready
from logd.wire.text import encode

PRODUCT = (b"x-elastic-product", b"Elasticsearch")
VARY = {"vary": "Accept, Content-Type"}
# The version tells clients which API to expect. Clients before 7.14 check the tagline.
INFO: dict[str, Any] = {
    "name": "logd",
    "cluster_name": "logd",
    "cluster_uuid": "logd",
    "version": {
        "number": "8.0.0",
        "build_flavor": "default",
        "build_type": "logd",
        "minimum_wire_compatibility_version": "7.17.0",
        "minimum_index_compatibility_version": "7.0.0",
    },
    "tagline": "You Know, for Search",
}
_SHARDS = {"total": 1, "successful": 1, "failed": 0}
_ACTIONS = ("index", "create", "update", "delete")
_UNSUPPORTED: dict[str, LogdError] = {
    "update": BadRequest("stored messages cannot be changed; use create"),
    "delete": BadRequest("stored messages cannot be deleted"),
}
_MAX_ACTION_BYTES = 4096
_MAX_INDICES = 1000  # in one request; several may belong to one topic
_MAX_PARSED = 1000  # action lines that are not parsed again
_MAX_NAME = 255  # characters of an index, as in Elasticsearch
_PIECE_RESULTS = 500  # in one piece of the response: 0.5 ms
_NOT_AN_ACTION = (
    "a line is not an action of the bulk format; an action is one of index, create, update and"
    ' delete, as {"index": {"_index": "<name>"}}'
)


# -- routes -------------------------------------------------------------------------------------


def is_elasticsearch_path(path: str) -> bool:
    """Do Elasticsearch clients use this path? Only their routes have a segment that starts with
    `_`."""
    return path == "/" or "/_" in path


def wants_info(headers: Mapping[str, str]) -> bool:
    """Does `GET /` request the description of the server, and not the web page?

    opensearch-py sends no `Accept`, but a JSON content type with every request.
    """
    accept = headers.get("accept", "")
    if "text/html" in accept:
        return False
    return "json" in accept or "json" in headers.get("content-type", "")


async def post_bulk(request: HttpRequest) -> Response:
    index = request.path_params.get("index")
    parse = partial(BulkRequest, default_index=index, max_bytes=request.max_batch_bytes)
    async with request.parse_body(parse) as bulk:
        error = await bulk.store(request)
    request.scope["rejection"] = error
    return _bulk_response(bulk, error)


def _bulk_response(bulk: BulkRequest, error: LogdError | None) -> Response:
    """A short response is sent as a whole, with its length."""
    status = 200 if error is None else error.status
    headers = {} if error is None else error_headers(error)
    pieces = bulk.response(error)
    if len(bulk.documents) <= _PIECE_RESULTS:
        return Response(b"".join(pieces), status, headers, "application/json")

    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
            await asyncio.sleep(0)  # a client that reads quickly must not block the loop

    return StreamingResponse(stream(), status, headers, "application/json")


async def post_document(request: HttpRequest) -> Response:
    index = request.path_params["index"]
    topic = topic_from(index)
    async with request.parse_body(parse_document) as message:
        offset = (await request.push(topic, message)).offset
    created = {"_index": index, "_id": str(offset), "_version": 1, "result": "created"}
    return JSONResponse(created | {"_shards": _SHARDS, "_seq_no": offset, "_primary_term": 1}, 201)


async def refresh(request: HttpRequest) -> Response:
    """Nothing to do: stored messages can be read at once."""
    return JSONResponse({"_shards": _SHARDS})


async def get_health(request: HttpRequest) -> Response:
    """Requested by clients before they send documents."""
    is_ready = not not_ready(request)
    return PlainTextResponse("logd green\n" if is_ready else "logd red\n", 200 if is_ready else 503)


# -- the bulk request ---------------------------------------------------------------------------


class _Target(msgspec.Struct):
    index: str | None = msgspec.field(default=None, name="_index")


class _Index(NamedTuple):
    """An index that documents name: its name as JSON, and its topic or the error."""

    json: str
    topic: str
    error: LogdError | None


class _BulkAction(NamedTuple):
    """A combination of action and index; most documents of a request have the same."""

    action: str
    target: _Index


class BulkRequest:
    def __init__(self, body: bytes, default_index: str | None, max_bytes: int) -> None:
        """Parses the body; BadRequest if it is not a bulk request."""
        self._begun_s = time.monotonic()
        self._default_index = default_index
        self.documents = array("I")  # the kind of each, in order
        self._kinds: list[_BulkAction] = []
        self._numbers: dict[_BulkAction, int] = {}  # of the kinds
        self._parsed: dict[bytes, int] = {}  # action lines and their kinds
        self._indices: dict[str, _Index] = {}
        self._results: dict[str, int | LogdError] = {}  # by topic: the first offset, or the error
        self._batches = self._parse(body, RequestQuota(max_bytes))

    def _parse(self, body: bytes, quota: RequestQuota) -> dict[str, PushBody]:
        topics = TopicBatches(quota)
        lines = (line for line in split_lines(body, 2) if line.strip())
        for line in lines:
            action, index = self._add_document(line)
            document = b"" if action == "delete" else next(lines, None)
            if document is None:
                raise BadRequest("the last action has no document")
            if action in _UNSUPPORTED or index.error is not None:
                quota.count_message()
                continue
            json_parser.check(document, "a document is not JSON")
            topics.builder(index.topic).add(document)
        return topics.build()

    def _add_document(self, action_line: bytes) -> _BulkAction:
        number = self._parsed.get(action_line)
        if number is None:
            number = self._parse_kind(action_line)
            if len(self._parsed) < _MAX_PARSED:
                self._parsed[action_line] = number
        self.documents.append(number)
        return self._kinds[number]

    def _parse_kind(self, line: bytes) -> int:
        action, name = _parse_action(line)
        name = self._default_index if name is None else name
        if name is None:
            raise BadRequest("an action without _index")
        if name not in self._indices:
            if len(self._indices) == _MAX_INDICES:
                raise BadRequest(f"one request names at most {_MAX_INDICES} indices")
            self._indices[name] = _index(name)
        kind = _BulkAction(action, self._indices[name])
        number = self._numbers.setdefault(kind, len(self._kinds))
        if number == len(self._kinds):
            self._kinds.append(kind)
        return number

    async def store(self, request: HttpRequest) -> LogdError | None:
        """Push one batch for each topic.

        The error if nothing at all is stored and the client should send all of it again."""
        for topic, batch in self._batches.items():
            try:
                self._results[topic] = (await request.push(topic, batch)).offset
            except LogdError as error:
                self._results[topic] = error
        self._batches = {}
        errors = [self._error(kind) for kind in self._kinds]
        if errors and all(isinstance(error, TRY_AGAIN) for error in errors):
            return errors[0]
        return None

    def _error(self, kind: _BulkAction) -> LogdError | None:
        result = self._results.get(kind.target.topic)
        failed = result if isinstance(result, LogdError) else None
        return _UNSUPPORTED.get(kind.action) or kind.target.error or failed

    def response(self, error: LogdError | None) -> Iterator[bytes]:
        """The JSON of the response in pieces, with a result for each document."""
        head: dict[str, Any] = {"took": int((time.monotonic() - self._begun_s) * 1000)}
        head["errors"] = any(self._error(kind) is not None for kind in self._kinds)
        if error is not None:
            head = {"error": error.code, "text": error.text} | head
        results = self._document_results()
        piece = f'{encode(head)[:-1]}, "items": ['
        separator = ""
        while more := list(islice(results, _PIECE_RESULTS)):
            yield (piece + separator + ",".join(more)).encode()
            piece, separator = "", ","
        yield f"{piece}]}}".encode()

    def _document_results(self) -> Iterator[str]:
        offsets = {
            topic: count(result)
            for topic, result in self._results.items()
            if isinstance(result, int)
        }
        for number in self.documents:
            kind = self._kinds[number]
            error = self._error(kind)
            start = f'{{"{kind.action}": {{"_index": {kind.target.json}, '
            if error is None:
                offset = next(offsets[kind.target.topic])
                yield f'{start}"_id": "{offset}", "status": 201, "result": "created"}}}}'
            else:
                reason = encode({"type": error.code, "reason": error.text})
                # Clients send a document again for status 429 only.
                status = 429 if isinstance(error, TRY_AGAIN) else error.status
                yield f'{start}"status": {status}, "error": {reason}}}}}'


def _parse_action(line: bytes) -> tuple[str, str | None]:
    """The action in a line, and the index that it names."""
    if len(line) > _MAX_ACTION_BYTES:
        raise BadRequest(f"an action of the bulk format has at most {_MAX_ACTION_BYTES} bytes")
    found = json_parser.decode(line, dict[str, _Target], _NOT_AN_ACTION)
    for action, target in found.items():
        if len(found) == 1 and action in _ACTIONS:
            return action, target.index
    raise BadRequest(_NOT_AN_ACTION)


def _index(name: str) -> _Index:
    try:
        if len(name) > _MAX_NAME:
            raise BadRequest(f"the name of an index has at most {_MAX_NAME} characters")
        return _Index(encode(name), topic_from(name), None)
    except LogdError as error:
        return _Index(encode(name[:_MAX_NAME]), "", error)
