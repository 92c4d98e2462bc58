"""State of the daemon as JSON: `/topics`, `/topics/<topic>`, `/stats`, `/healthz`, `/readyz`."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from logd.errors import BadRequest
from logd.web.async_service import AsyncService
from logd.web.request import HttpRequest
from logd.wire.requests import Stats, Topics, topic_glob

_TEXTS = {"topic", "id", "fsync", "hook_running", "version"}  # stats that are not numbers


async def get_topics(request: HttpRequest) -> Response:
    glob = topic_glob(request.query_params.get("glob", "*").encode("utf-8", "replace"))
    lines = (await request.service.text(Topics(glob))).decode().splitlines()
    names = ("first", "next", "bytes", "partitions")
    rows = []
    for line in lines:
        topic, *numbers = line.split(" ")
        rows.append({"topic": topic} | dict(zip(names, map(int, numbers), strict=True)))
    return JSONResponse(rows)


async def get_topic(request: HttpRequest) -> Response:
    """Parameters are refused: Python's HTTPHandler sends log records as such by default, and
    ignores the response."""
    if request.query_params:
        raise BadRequest(
            "GET /topics/<topic> has no parameters, but"
            f" {next(iter(request.query_params))[:40]!r} was sent;"
            ' to store a message use POST (Python\'s HTTPHandler: method="POST")'
        )
    return JSONResponse(_typed(await read_stats(request.service, request.topic)))


async def get_stats(request: HttpRequest) -> Response:
    return JSONResponse(_typed(await read_stats(request.service)))


async def read_stats(service: AsyncService, topic: str | None = None) -> dict[str, str]:
    lines = (await service.text(Stats(topic))).decode().splitlines()
    return dict(line.split(": ", 1) for line in lines)


def _typed(values: dict[str, str]) -> dict[str, Any]:
    """By the field: a topic may be called 007."""
    return {
        name: value if name in _TEXTS or not value.isdecimal() else int(value)
        for name, value in values.items()
    }


async def get_health(request: HttpRequest) -> Response:
    """A response shows that the event loop runs."""
    return JSONResponse({"ok": True})


async def get_readiness(request: HttpRequest) -> Response:
    reasons = not_ready(request)
    return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


def not_ready(request: HttpRequest) -> list[str]:
    """The reasons why a push would be refused."""
    service = request.context.service
    return service.service.not_ready() + (["the daemon is stopping"] if service.stopping else [])
