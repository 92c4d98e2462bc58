"""`GET /openapi.json`: the description of the routes. A test compares it with the route table."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response

from logd import __version__
from logd.batch import MAX_NUMBER
from logd.errors import BY_CODE
from logd.web.request import HttpRequest
from logd.wire.requests import TOPIC_NAME

Schema = dict[str, Any]
_NDJSON = "application/x-ndjson"
_JSON, _OCTETS, _PLAIN = "application/json", "application/octet-stream", "text/plain"
_ERRORS = {
    "400": "Invalid request: the text says why",
    "401": "A valid token is required",
    "403": "Host, origin or token not allowed, or too many topics",
    "404": "The topic does not exist",
    "409": "The id was used for other messages",
    "413": "Too large",
    "415": "Only JSON is supported",
    "416": "The offset does not exist",
    "500": "The topic is damaged, or the disk failed",
    "503": "Busy or stopping: retry",
    "507": "The disk is full: retry",
}
_READ = ("400", "401", "403", "500", "503")
_PUSH = (*_READ, "413", "507")


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _parameter(name: str, where: str, schema: Schema, text: str = "") -> Schema:
    found = {"name": name, "in": where, "required": where == "path", "schema": schema}
    return found | {"description": text} if text else found


def _content(**schemas: Schema) -> Schema:
    types = {"text": _PLAIN, "ndjson": _NDJSON, "json": _JSON, "octets": _OCTETS}
    return {"content": {types[name]: {"schema": schema} for name, schema in schemas.items()}}


def _route(
    methods: tuple[str, ...], summary: str, success: Schema, errors: tuple[str, ...],
    *parameters: Schema, body: Schema | None = None, status: str = "200",
) -> Schema:  # fmt: skip
    responses: Schema = {status: {"description": "Success", **success}}
    for code in errors:
        responses[code] = {"description": _ERRORS[code], **_content(json=_ERROR)}
    found: Schema = {"summary": summary, "responses": responses}
    if parameters:
        found["parameters"] = list(parameters)
    if body is not None:
        found["requestBody"] = {"required": True, **body}
    return dict.fromkeys(methods, found)


_TEXT: Schema = {"type": "string"}
_BINARY: Schema = {"type": "string", "format": "binary"}
_BOOLEAN: Schema = {"type": "boolean"}
_FLAG: Schema = {"enum": ["0", "1"]}
_NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}
_ANY: Schema = {"type": "object"}
_ERROR = _object(error={"type": "string", "enum": list(BY_CODE)}, text=_TEXT)
_NAME = {"type": "string", "pattern": f"^{TOPIC_NAME}$"}
_START = {"type": "string", "pattern": "^(first|next|@?(0|[1-9][0-9]{0,17}))$"}
_ID = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}:[1-9][0-9]{0,17}$"}
_TOPIC = _parameter("topic", "path", _NAME) | {"example": "app"}
_INDEX = _parameter("index", "path", _NAME)
_QUERY = [
    _parameter("from", "query", _START, "an offset, first, next, or @<unix ms>"),
    _parameter("since", "query", _TEXT, "a start time: ISO 8601, or unix ms"),
    _parameter("until", "query", _TEXT, "end before this offset or time"),
    _parameter("limit", "query", _NUMBER, "maximum number of messages; 0 for all"),
    _parameter("grep", "query", _TEXT, "only messages that match this RE2 expression"),
    _parameter("case", "query", _FLAG, "0 ignores case"),
    _parameter("progress", "query", _FLAG, "1 reports progress from time to time"),
    _parameter("format", "query", {"enum": ["text", "ndjson", "raw"]}),
]
_RESUME = _parameter("Last-Event-ID", "header", _TEXT, "resume after this offset")
_ROW = _object(topic=_TEXT, first=_NUMBER, next=_NUMBER, bytes=_NUMBER, partitions=_NUMBER)
_PUSHED = _object(offset=_NUMBER, messages=_NUMBER)
_LINE = {"type": "array", "prefixItems": [{"type": "string", "pattern": "^[0-9]{1,19}$"}, _TEXT]}
_VALUES = _array(_LINE | {"minItems": 2, "maxItems": 2})
_LABELS = {"type": "object", "additionalProperties": _TEXT}
_STREAMS = _object(streams=_array(_object(stream=_LABELS, values=_VALUES)))
_READY = _content(json=_object(ready=_BOOLEAN, reasons=_array(_TEXT)))
_MESSAGES = _content(text=_TEXT | {"minLength": 1}, ndjson=_BINARY, json={"minItems": 1})
_RESULTS = _content(json=_object(took=_NUMBER, errors=_BOOLEAN, items=_array(_ANY)))

_get, _post = partial(_route, ("get",)), partial(_route, ("post",))
_upload = partial(
    _post, "Journal entries from systemd-journal-upload", _content(json=_object(messages=_NUMBER)),
    _PUSH, body=_content(octets=_BINARY),
)  # fmt: skip
_bulk = partial(
    _route, ("post", "put"), "Elasticsearch bulk request", _RESULTS, _PUSH,
    body=_content(ndjson=_BINARY, json=_BINARY),
)  # fmt: skip
_refresh = partial(
    _route, ("get", "post"), "For Elasticsearch clients; stored messages can be read at once",
    _content(json=_ANY), _READ,
)  # fmt: skip

PATHS: dict[str, Schema] = {
    "/log": _post(
        "Commands of the line protocol; the response contains their replies",
        _content(octets=_BINARY), ("400", "401", "403"), body=_content(octets=_BINARY),
    ),
    "/topics": _get(
        "List topics", _content(json=_array(_ROW)), _READ, _parameter("glob", "query", _TEXT)
    ),
    "/topics/{topic}": _get("One topic", _content(json=_ANY), (*_READ, "404"), _TOPIC) | _post(
        "Store messages: each line, each element of a JSON array, or one JSON value",
        _content(json=_PUSHED), (*_PUSH, "409"), _TOPIC,
        _parameter("id", "query", _ID, "<producer>:<n>"), body=_MESSAGES,
    ),
    "/topics/{topic}/messages": _get(
        "Read matching messages of a range", {}, (*_READ, "404", "416"), _TOPIC, *_QUERY
    ),
    "/topics/{topic}/follow": _get(
        "Follow a topic with server-sent events", {}, (*_READ, "404", "416"),
        _TOPIC, *_QUERY[:6], _RESUME,
    ),
    "/loki/api/v1/push": _post(
        "Loki push request", {}, (*_PUSH, "415"), body=_content(json=_STREAMS), status="204"
    ),
    "/upload": _upload(),
    "/topics/{topic}/upload": _upload(_TOPIC),
    "/_bulk": _bulk(),
    "/{index}/_bulk": _bulk(_INDEX),
    "/{index}/_doc": _post(
        "Store one Elasticsearch document", _content(json=_ANY), _PUSH, _INDEX,
        body=_content(json=_ANY), status="201",
    ),
    "/_refresh": _refresh(),
    "/{index}/_refresh": _refresh(_INDEX),
    "/_cat/health": _get("Readiness, for Elasticsearch clients", _content(text=_TEXT), _READ),
    "/stats": _get("Statistics of the daemon", _content(json=_ANY), _READ),
    "/metrics": _get("Metrics for Prometheus", _content(text=_TEXT), _READ),
    "/healthz": _get("Liveness: the event loop runs", _content(json=_ANY), _READ),
    "/readyz": _get("Readiness for pushes", _READY, ("400", "403")),
    "/openapi.json": _get("This document", _content(json=_ANY), _READ),
}  # fmt: skip
PATHS["/readyz"]["get"]["responses"]["503"] = {"description": "Not ready: see the reasons"} | _READY

DOCUMENT: Schema = {
    "openapi": "3.1.0",
    "info": {"title": "logd", "version": __version__, "license": {"name": "MIT"}},
    "paths": PATHS,
    "security": [{}, {"token": []}, {"password": []}],  # depending on the settings
    "components": {
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer"},
            "password": {"type": "http", "scheme": "basic"},
        }
    },
}


async def get_openapi(request: HttpRequest) -> Response:
    return JSONResponse(DOCUMENT)
