"""`GET /topics/<topic>/messages`: matching messages of a range, as text, NDJSON or batches."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from starlette.responses import Response

from logd.access.connection_limits import network
from logd.errors import IoError
from logd.web.async_service import Planned
from logd.web.batch_rendering import PIECE_BYTES
from logd.web.message_stream import ClientRead, MessageStream
from logd.web.read_parameters import RAW, ReadParameters, parse_parameters
from logd.web.request import HttpRequest
from logd.wire.requests import Read

RAW_BYTES = 8 << 20  # at most, of one raw response
PROGRESS_S = 0.5


async def get_messages(request: HttpRequest) -> Response:
    accept = request.headers.get("accept", "")
    parameters = parse_parameters(request.topic, dict(request.query_params), accept)
    if request.method == "HEAD":
        return Response(media_type=parameters.media_type)
    read = client_read(request, parameters)
    if parameters.media_type != RAW:
        return await stream_response(request, parameters, _render_messages(read, parameters))
    planned = await read.service.planned(
        Read(parameters.topic, parameters.start, parameters.limit, RAW_BYTES)
    )
    headers = {"logd-offset": str(planned.offset), "logd-messages": str(planned.messages)}
    headers["content-length"] = str(planned.size)
    pieces = _read_batches(read, planned)
    first = b"" if planned.slices else await anext(pieces, b"")
    read.check()  # the plan may have had to wait for the disk
    return MessageStream(
        request.context.streams, request.service, parameters.topic, first, pieces, planned.slices,
        media_type=parameters.media_type, headers=headers,
    )  # fmt: skip


def client_read(request: HttpRequest, parameters: ReadParameters) -> ClientRead:
    grant, is_gone = request.scope.get("grant"), request.scope["is_gone"]
    address = network(request.client.host if request.client else "")
    client = f"address {address}" if grant is None else f"token {grant.name}"
    return ClientRead(request.service, request.context.threads, client, is_gone, parameters)


async def stream_response(
    request: HttpRequest, parameters: ReadParameters, pieces: AsyncGenerator[bytes, None],
    headers: dict[str, str] | None = None,
) -> Response:  # fmt: skip
    """A response that begins when there is something to send."""
    first = await anext(pieces, b"")
    return MessageStream(
        request.context.streams, request.service, parameters.topic, first, pieces,
        media_type=parameters.media_type, headers=headers,
    )  # fmt: skip


async def _render_messages(
    read: ClientRead, parameters: ReadParameters
) -> AsyncGenerator[bytes, None]:
    left, reported_at_s = parameters.limit, time.monotonic()
    with read.open():
        end = (await read.service.stats(parameters.topic))["next"]
        while left > 0 and read.has_more:
            piece = await read.render(left)
            left -= piece.messages
            out, now_s = piece.out, time.monotonic()
            is_due = parameters.reports_progress and now_s - reported_at_s >= PROGRESS_S
            if is_due and not piece.end.skip:
                reported_at_s = now_s
                out += b'{"progress": {"offset": %d, "next": %d}}\n' % (piece.end.offset, end)
            del piece  # a client that does not read must not keep it
            if out:
                yield out


async def _read_batches(read: ClientRead, planned: Planned) -> AsyncGenerator[bytes, None]:
    """Whole batches as they are on disk."""
    position = 0
    while position < planned.size:
        read.check()
        async with read.threads.reserve_read() as thread:
            data = bytes(await thread.run(planned.read, position, PIECE_BYTES))
        if not data:
            raise IoError("a file is shorter than it was; run log-cli check")
        position += len(data)
        yield data
