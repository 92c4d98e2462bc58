"""A bare starlette application on uvicorn: the upper limit for HTTP in Python.

python -m bench.http_echo prints its port. It accepts bodies and replies with a constant line;
downloads come from memory.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

PIECE_BYTES = 256 * 1024


async def take(request: Request) -> Response:
    await request.body()
    return Response(b"OK 0 1\r\n", media_type="application/octet-stream")


async def streamed(request: Request) -> Response:
    async def pieces(left: int) -> AsyncIterator[bytes]:
        piece = bytes(PIECE_BYTES)
        while left > 0:
            yield piece
            left -= PIECE_BYTES

    return StreamingResponse(pieces(int(request.path_params["size"])), media_type="text/plain")


async def whole(request: Request) -> Response:
    return Response(bytes(int(request.path_params["size"])), media_type="text/plain")


async def main() -> None:
    routes = [
        Route("/log", take, methods=["POST"]),
        Route("/streamed/{size}", streamed),
        Route("/whole/{size}", whole),
    ]
    settings = uvicorn.Config(  # the settings of logd
        Starlette(routes=routes), http="httptools", ws="none", lifespan="off", log_config=None,
        access_log=False, server_header=False, date_header=False, proxy_headers=False,
    )  # fmt: skip
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(f"ready tcp=127.0.0.1:{listening.getsockname()[1]}", flush=True)
    await uvicorn.Server(settings).serve([listening])


if __name__ == "__main__":
    uvloop.run(main())
