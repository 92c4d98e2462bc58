"""State of the daemon as JSON: `/topics`, `/topics/<topic>`, `/stats`, `/healthz`, `/readyz`."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from logd.errors import BadRequest
from logd.service import TableReply
from logd.web.request import HttpRequest
from logd.wire.requests import Topics, topic_glob


async def get_topics(request: HttpRequest) -> Response:
    glob = topic_glob(request.query_params.get("glob", "*").encode("utf-8", "replace"))
    table = await request.service.reply(Topics(glob), TableReply)
    return JSONResponse([row._asdict() for row in table.rows])


async def get_topic(request: HttpRequest) -> Response:
    """Parameters are refused: Python's HTTPHandler sends log records as such by default, and
    ignores the response."""
    if request.query_params:
        raise BadRequest(
            "GET /topics/<topic> has no parameters, but"
            f" {next(iter(request.query_params))[:40]!r} was sent;"
            ' to store a message use POST (Python\'s HTTPHandler: method="POST")'
        )
    return JSONResponse(await request.service.stats(request.topic))


async def get_stats(request: HttpRequest) -> Response:
    return JSONResponse(await request.service.stats())


async def get_health(request: HttpRequest) -> Response:
    """A response shows that the event loop runs."""
    return JSONResponse({"ok": True})


async def get_readiness(request: HttpRequest) -> Response:
    reasons = not_ready(request)
    return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


def not_ready(request: HttpRequest) -> list[str]:
    """The reasons why a push would be refused."""
    context = request.context
    stopping = ["the daemon is stopping"] if context.is_stopping() else []
    return context.service.not_ready() + stopping
