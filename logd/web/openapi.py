"""`GET /openapi.json`: the description of the routes. A test compares it with the route table."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from logd.batch import MAX_NUMBER
from logd.errors import BY_CODE
from logd.service import VERSION
from logd.web.request import HttpRequest

Schema = dict[str, Any]

_NDJSON = "application/x-ndjson"
_JSON, _OCTETS, _PLAIN = "application/json", "application/octet-stream", "text/plain"
_TEXT: Schema = {"type": "string"}
_BINARY: Schema = {"type": "string", "format": "binary"}
_OFFSET: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}
_ANY: Schema = {"type": "object"}
_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_ERROR: Schema = {
    "type": "object",
    "properties": {"error": {"type": "string", "enum": list(BY_CODE)}, "text": _TEXT},
    "required": ["error", "text"],
}
_ERRORS = {
    "400": "Invalid request: the text says why",
    "401": "A valid token is required",
    "403": "Host, origin or token not allowed, or too many topics",
    "413": "Too large",
    "503": "Busy or stopping: retry",
    "507": "The disk is full: retry",
    "500": "The topic is damaged, or the disk failed",
}
_READ = ("400", "401", "403", "500", "503")
_PUSH = ("400", "401", "403", "413", "500", "503", "507")


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _parameter(name: str, where: str, schema: Schema, text: str = "") -> Schema:
    found = {"name": name, "in": where, "required": where == "path", "schema": schema}
    return found | {"description": text} if text else found


def _responses(
    schema: Schema | None, kind: str, errors: tuple[str, ...], **others: str
) -> dict[str, Any]:
    content = {"content": {kind: {"schema": schema}}} if schema is not None else {}
    responses: dict[str, Any] = {"200": {"description": "Success", **content}}
    error = {"content": {"application/json": {"schema": _ERROR}}}
    for status in errors:
        responses[status] = {"description": _ERRORS[status], **error}
    for status, text in others.items():
        responses[status.removeprefix("s")] = {"description": text, **error}
    return responses


def _body(**schemas: Schema) -> Schema:
    kinds = {"text": _PLAIN, "ndjson": _NDJSON, "json": _JSON, "octets": _OCTETS}
    content = {kinds[name]: {"schema": schema} for name, schema in schemas.items()}
    return {"required": True, "content": content}


_WHERE = {"type": "string", "pattern": "^(first|next|@?(0|[1-9][0-9]{0,17}))$"}
_ID = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}:[1-9][0-9]{0,17}$"}
_TOPIC = _parameter("topic", "path", {"type": "string", "pattern": f"^{_NAME}$"})
_TOPIC["example"] = "app"
_INDEX = _parameter("index", "path", {"type": "string", "pattern": f"^{_NAME}$"})
_QUERY = [
    _parameter("from", "query", _WHERE, "an offset, first, next, or @<unix ms>"),
    _parameter("since", "query", _TEXT, "a start time: ISO 8601, or unix ms"),
    _parameter("until", "query", _TEXT, "end before this offset or time"),
    _parameter("limit", "query", _OFFSET, "maximum number of messages; 0 for all"),
    _parameter("grep", "query", _TEXT, "only messages that match this RE2 expression"),
    _parameter("case", "query", {"enum": ["0", "1"]}, "0 ignores case"),
    _parameter("progress", "query", {"enum": ["0", "1"]}, "1 reports progress from time to time"),
    _parameter("format", "query", {"enum": ["text", "ndjson", "raw"]}),
]
_ROW = _object(topic=_TEXT, first=_OFFSET, next=_OFFSET, bytes=_OFFSET, partitions=_OFFSET)
_PUSHED = _object(offset=_OFFSET, messages=_OFFSET)
_BULK = _object(took=_OFFSET, errors={"type": "boolean"}, items={"type": "array", "items": _ANY})
_LINE = {"type": "array", "prefixItems": [{"type": "string", "pattern": "^[0-9]{1,19}$"}, _TEXT]}
_LABELS = {"type": "object", "additionalProperties": _TEXT}
_STREAM = _object(
    stream=_LABELS, values={"type": "array", "items": _LINE | {"minItems": 2, "maxItems": 2}}
)
_LOKI = _object(streams={"type": "array", "items": _STREAM})
_READY = _object(ready={"type": "boolean"}, reasons={"type": "array", "items": _TEXT})
_NOT_FOUND = {"s404": "The topic does not exist"}
_BULK_POST = {
    "summary": "Elasticsearch bulk request",
    "requestBody": _body(ndjson=_BINARY, json=_BINARY),
    "responses": _responses(_BULK, _JSON, _PUSH),
}
_UPLOAD_POST = {
    "summary": "Journal entries from systemd-journal-upload",
    "requestBody": _body(octets=_BINARY),
    "responses": _responses(_object(messages=_OFFSET), _JSON, _PUSH),
}
_REFRESH = {
    "summary": "For Elasticsearch clients; stored messages can be read at once",
    "responses": _responses(_ANY, _JSON, _READ),
}


def _get(summary: str, responses: dict[str, Any], *parameters: Schema) -> Schema:
    found: Schema = {"summary": summary, "responses": responses}
    return {"get": found | ({"parameters": list(parameters)} if parameters else {})}


PATHS: dict[str, dict[str, Any]] = {
    "/log": {
        "post": {
            "summary": "Commands of the line protocol; the response contains their replies",
            "requestBody": _body(octets=_BINARY),
            "responses": _responses(_BINARY, _OCTETS, ("400", "401", "403")),
        }
    },
    "/topics": _get(
        "List topics",
        _responses({"type": "array", "items": _ROW}, _JSON, _READ),
        _parameter("glob", "query", _TEXT),
    ),
    "/topics/{topic}": _get("One topic", _responses(_ANY, _JSON, _READ, **_NOT_FOUND), _TOPIC)
    | {
        "post": {
            "summary": "Store messages: each line, each element of a JSON array, or one JSON value",
            "parameters": [_TOPIC, _parameter("id", "query", _ID, "<producer>:<n>")],
            "requestBody": _body(
                text=_TEXT | {"minLength": 1}, ndjson=_BINARY, json={"minItems": 1}
            ),
            "responses": _responses(_PUSHED, _JSON, _PUSH, s409="The id was already used"),
        }
    },
    "/topics/{topic}/messages": _get(
        "Read messages of a range that match",
        _responses(None, _PLAIN, _READ, **_NOT_FOUND, s416="No such offset"),
        _TOPIC,
        *_QUERY,
    ),
    "/topics/{topic}/follow": _get(
        "Follow a topic with server-sent events",
        _responses(None, "text/event-stream", _READ, **_NOT_FOUND, s416="No such offset"),
        _TOPIC,
        *_QUERY[:6],
        _parameter("Last-Event-ID", "header", _TEXT, "resume after this offset"),
    ),
    "/loki/api/v1/push": {
        "post": {
            "summary": "Loki push request",
            "requestBody": _body(json=_LOKI),
            "responses": {"204": {"description": "Stored"}}
            | _responses(None, _JSON, _PUSH, s415="Only JSON is supported"),
        }
    },
    "/upload": {"post": _UPLOAD_POST},
    "/topics/{topic}/upload": {"post": {**_UPLOAD_POST, "parameters": [_TOPIC]}},
    "/_bulk": {"post": _BULK_POST, "put": _BULK_POST},
    "/{index}/_bulk": {
        method: {**_BULK_POST, "parameters": [_INDEX]} for method in ("post", "put")
    },
    "/{index}/_doc": {
        "post": {
            "summary": "Store one Elasticsearch document",
            "parameters": [_INDEX],
            "requestBody": _body(json=_ANY),
            "responses": {"201": {"description": "Stored", "content": {_JSON: {"schema": _ANY}}}}
            | _responses(None, _JSON, _PUSH),
        }
    },
    "/_refresh": {"get": _REFRESH, "post": _REFRESH},
    "/{index}/_refresh": {
        method: {**_REFRESH, "parameters": [_INDEX]} for method in ("get", "post")
    },
    "/_cat/health": _get("Readiness, for Elasticsearch clients", _responses(_TEXT, _PLAIN, _READ)),
    "/stats": _get("Statistics of the daemon", _responses(_ANY, _JSON, _READ)),
    "/metrics": _get("Metrics for Prometheus", _responses(_TEXT, _PLAIN, _READ)),
    "/healthz": _get("Liveness: the event loop runs", _responses(_ANY, _JSON, _READ)),
    "/readyz": _get("Readiness for pushes", _responses(_READY, _JSON, ("400", "403"))),
    "/openapi.json": _get("This document", _responses(_ANY, _JSON, _READ)),
}
PATHS["/readyz"]["get"]["responses"]["503"] = {
    "description": "Not ready, with the reasons", "content": {_JSON: {"schema": _READY}},
}  # fmt: skip

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "logd", "version": VERSION, "license": {"name": "MIT"}},
    "paths": PATHS,
    "security": [
        {},
        {"token": []},
        {"password": []},
    ],  # depending on the settings
    "components": {
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer"},
            "password": {"type": "http", "scheme": "basic"},
        }
    },
}


async def get_openapi(request: HttpRequest) -> Response:
    return JSONResponse(DOCUMENT)
