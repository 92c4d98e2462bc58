"""Responses to requests that fail: `{"error": <code>, "text": <text>}` with the error's status."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from logd.errors import TRY_AGAIN, BadRequest, LogdError, NotFound, TooLarge, Unauthorized
from logd.web.authentication import CHALLENGES

_RETRY_AFTER_S = 1


def error_response(error: LogdError) -> Response:
    body = {"error": error.code, "text": error.text}
    response = JSONResponse(body, error.status, headers=error_headers(error))
    if isinstance(error, Unauthorized):
        response.raw_headers += CHALLENGES
    return response


def error_headers(error: LogdError) -> dict[str, str]:
    headers = {"retry-after": str(_RETRY_AFTER_S)} if isinstance(error, TRY_AGAIN) else {}
    if error.closes and not isinstance(error, TooLarge):  # the rest of its body is read first
        headers["connection"] = "close"
    return headers


def method_not_allowed(methods: set[str]) -> Response:
    allowed = ", ".join(sorted(methods))
    text = f"this path does not support the method of the request; it supports {allowed}"
    body = {"error": BadRequest.code, "text": text}
    return JSONResponse(body, 405, headers={"allow": allowed})


async def handle_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LogdError)
    # Traceback and context refer to the body, which uvicorn would keep for a while.
    error.__context__ = None
    request.scope["rejection"] = error.with_traceback(None)
    return error_response(error)


async def handle_not_found(request: Request, error: Exception) -> Response:
    text = f"there is no route {request.url.path[:80]!r}; docs/http.md lists the routes"
    return error_response(NotFound(text))
