"""`/openapi.json`: the routes for programs. One table; a test compares it with what is routed."""

from __future__ import annotations

from typing import Any

from logd import __version__
from logd.batch import MAX_NUMBER
from logd.errors import BY_CODE
from logd.wire.requests import TOPIC_NAME

Schema = dict[str, Any]

_NDJSON = "application/x-ndjson"
_JSON, _OCTETS, _PLAIN = "application/json", "application/octet-stream", "text/plain"
_TEXT: Schema = {"type": "string"}
_BINARY: Schema = {"type": "string", "format": "binary"}
_OFFSET: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}
_ANY: Schema = {"type": "object"}
_ERROR: Schema = {
    "type": "object",
    "properties": {"error": {"type": "string", "enum": list(BY_CODE)}, "text": _TEXT},
    "required": ["error", "text"],
}
_REFUSALS = {
    "400": "Refused: the text says why",
    "401": "Show a token",
    "403": "Not from here, not with this token, or too many topics",
    "413": "Too large",
    "503": "Busy or stopping: send it again",
    "507": "The disk is full: send it again",
    "500": "A topic is damaged, or the disk fails",
}
_READ = ("400", "401", "403", "500", "503")
_PUSH = ("400", "401", "403", "413", "500", "503", "507")


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _parameter(name: str, where: str, schema: Schema, text: str = "") -> Schema:
    found = {"name": name, "in": where, "required": where == "path", "schema": schema}
    return found | {"description": text} if text else found


def _answers(
    schema: Schema | None, kind: str, refusals: tuple[str, ...], **others: str
) -> dict[str, Any]:
    content = {"content": {kind: {"schema": schema}}} if schema is not None else {}
    answers: dict[str, Any] = {"200": {"description": "Done", **content}}
    error = {"content": {"application/json": {"schema": _ERROR}}}
    for status in refusals:
        answers[status] = {"description": _REFUSALS[status], **error}
    for status, text in others.items():
        answers[status.removeprefix("s")] = {"description": text, **error}
    return answers


def _body(**schemas: Schema) -> Schema:
    kinds = {"text": _PLAIN, "ndjson": _NDJSON, "json": _JSON, "octets": _OCTETS}
    content = {kinds[name]: {"schema": schema} for name, schema in schemas.items()}
    return {"required": True, "content": content}


_WHERE = {"type": "string", "pattern": "^(first|next|@?(0|[1-9][0-9]{0,17}))$"}
_ID = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}:[1-9][0-9]{0,17}$"}
_TOPIC = _parameter("topic", "path", {"type": "string", "pattern": f"^{TOPIC_NAME}$"})
_TOPIC["example"] = "app"
_INDEX = _parameter("index", "path", {"type": "string", "pattern": f"^{TOPIC_NAME}$"})
_QUERY = [
    _parameter("from", "query", _WHERE, "an offset, first, next, or @<unix ms>"),
    _parameter("since", "query", _TEXT, "a time instead: ISO 8601, or unix ms"),
    _parameter("until", "query", _TEXT, "ends before this offset, or before this time"),
    _parameter("limit", "query", _OFFSET, "ends after so many messages; 0 for all"),
    _parameter("grep", "query", _TEXT, "only messages that this RE2 expression is found in"),
    _parameter("case", "query", {"enum": ["0", "1"]}, "0 ignores case"),
    _parameter("progress", "query", {"enum": ["0", "1"]}, "1: say now and then how far it is"),
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
_MISSING = {"s404": "There is no such topic"}
_BULK_POST = {
    "summary": "The Elasticsearch bulk form",
    "requestBody": _body(ndjson=_BINARY, json=_BINARY),
    "responses": _answers(_BULK, _JSON, _PUSH),
}
_UPLOAD_POST = {
    "summary": "Entries of the journal, as systemd-journal-upload sends them",
    "requestBody": _body(octets=_BINARY),
    "responses": _answers(_object(messages=_OFFSET), _JSON, _PUSH),
}
_REFRESH = {
    "summary": "For Elasticsearch clients; what is stored can be read already",
    "responses": _answers(_ANY, _JSON, _READ),
}


def _get(summary: str, answers: dict[str, Any], *parameters: Schema) -> Schema:
    found: Schema = {"summary": summary, "responses": answers}
    return {"get": found | ({"parameters": list(parameters)} if parameters else {})}


PATHS: dict[str, dict[str, Any]] = {
    "/log": {
        "post": {
            "summary": "Protocol commands in the body, their replies in the response",
            "requestBody": _body(octets=_BINARY),
            "responses": _answers(_BINARY, _OCTETS, ("400", "401", "403")),
        }
    },
    "/topics": _get(
        "The topics there are",
        _answers({"type": "array", "items": _ROW}, _JSON, _READ),
        _parameter("glob", "query", _TEXT),
    ),
    "/topics/{topic}": _get("One topic", _answers(_ANY, _JSON, _READ, **_MISSING), _TOPIC)
    | {
        "post": {
            "summary": "Store messages: each line, each element of a JSON array, or one JSON value",
            "parameters": [_TOPIC, _parameter("id", "query", _ID, "<producer>:<n>")],
            "requestBody": _body(
                text=_TEXT | {"minLength": 1}, ndjson=_BINARY, json={"minItems": 1}
            ),
            "responses": _answers(_PUSHED, _JSON, _PUSH, s409="This id was used otherwise"),
        }
    },
    "/topics/{topic}/messages": _get(
        "Messages, from here to there, that match",
        _answers(None, _PLAIN, _READ, **_MISSING, s416="The offset is not there"),
        _TOPIC,
        *_QUERY,
    ),
    "/topics/{topic}/follow": _get(
        "Messages as they come, as server-sent events",
        _answers(None, "text/event-stream", _READ, **_MISSING, s416="The offset is not there"),
        _TOPIC,
        *_QUERY[:5],
        _QUERY[5],
        _parameter("Last-Event-ID", "header", _TEXT, "go on behind this offset"),
    ),
    "/loki/api/v1/push": {
        "post": {
            "summary": "What Loki's clients send",
            "requestBody": _body(json=_LOKI),
            "responses": {"204": {"description": "Stored"}}
            | _answers(None, _JSON, _PUSH, s415="Only JSON is spoken"),
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
            "summary": "One document of Elasticsearch",
            "parameters": [_INDEX],
            "requestBody": _body(json=_ANY),
            "responses": {"201": {"description": "Stored", "content": {_JSON: {"schema": _ANY}}}}
            | _answers(None, _JSON, _PUSH),
        }
    },
    "/_refresh": {"get": _REFRESH, "post": _REFRESH},
    "/{index}/_refresh": {
        method: {**_REFRESH, "parameters": [_INDEX]} for method in ("get", "post")
    },
    "/_cat/health": _get(
        "Like readyz, for senders of the bulk form", _answers(_TEXT, _PLAIN, _READ)
    ),
    "/stats": _get("Counters", _answers(_ANY, _JSON, _READ)),
    "/metrics": _get("Counters for Prometheus", _answers(_TEXT, _PLAIN, _READ)),
    "/healthz": _get("The daemon's loop turns", _answers(_ANY, _JSON, _READ)),
    "/readyz": _get("Would a push be taken?", _answers(_READY, _JSON, ("400", "403"))),
    "/openapi.json": _get("This", _answers(_ANY, _JSON, _READ)),
}
PATHS["/readyz"]["get"]["responses"]["503"] = {
    "description": "Not now: the reasons say why", "content": {_JSON: {"schema": _READY}},
}  # fmt: skip

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "logd", "version": __version__, "license": {"name": "MIT"}},
    "paths": PATHS,
    "security": [{}, {"token": []}, {"password": []}],  # which of them, the daemon's settings say
    "components": {
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer"},
            "password": {"type": "http", "scheme": "basic"},
        }
    },
}
