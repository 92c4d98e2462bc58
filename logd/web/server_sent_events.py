"""`GET /topics/<topic>/follow`: messages as server-sent events, as they are stored.

Errors must be detected before the stream begins; afterwards they cannot be reported.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from starlette.responses import Response

from logd.batch import MAX_NUMBER
from logd.errors import OutOfRange
from logd.web.message_stream import ClientRead
from logd.web.messages import client_read, stream_response
from logd.web.read_parameters import EVENTS, ReadParameters, parse_parameters
from logd.web.request import HttpRequest
from logd.wire.requests import Read, number

KEEP_ALIVE_MS = 15_000
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def get_events(request: HttpRequest) -> Response:
    parameters = parse_parameters(request.topic, dict(request.query_params), "")
    parameters.media_type = EVENTS
    if "from" not in request.query_params and "since" not in request.query_params:
        parameters.start = "next"
    last = request.headers.get("last-event-id")
    if last:
        parameters.start = number(last.encode("ascii", "replace"), "Last-Event-ID") + 1
    await _check_start(request, parameters, is_resumed=last is not None)
    if request.method == "HEAD":
        return Response(media_type=EVENTS, headers=_HEADERS)
    events = _render_events(client_read(request, parameters), or_first=last is not None)
    return await stream_response(request, parameters, events, _HEADERS)


async def _check_start(request: HttpRequest, parameters: ReadParameters, is_resumed: bool) -> None:
    """A client that reconnects may resume after messages that have expired."""
    stats = await request.service.stats(parameters.topic)
    start = parameters.start
    request.service.check(Read(parameters.topic, start, 1))
    first, next_ = int(stats["first"]), int(stats["next"])
    if isinstance(start, int) and (start > next_ or (start < first and not is_resumed)):
        raise OutOfRange(f"first={first} next={next_}")


async def _render_events(read: ClientRead, or_first: bool) -> AsyncGenerator[bytes, None]:
    """Until the client disconnects, or until the end that it requested."""
    with read.open(wait_ms=KEEP_ALIVE_MS, or_first=or_first):
        yield b"retry: 1000\n\n"
        sent_at_s = time.monotonic()
        while read.has_more:
            piece = await read.render(MAX_NUMBER)
            out, now_s = piece.out, time.monotonic()
            if not out and now_s - sent_at_s >= KEEP_ALIVE_MS / 1000:
                # A comment prevents proxies from closing an idle connection.
                out = b": nothing new up to %d\n\n" % piece.end.offset
            del piece
            if out:
                sent_at_s = now_s
                yield out
