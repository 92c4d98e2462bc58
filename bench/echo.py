"""A bare uvloop server: what an event loop in Python costs before any logging is done.

It knows the length of a request beforehand, looks at no byte of it, and answers each with the same
line. No server on this loop that reads its requests can be faster. Run in a process of its own.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

REPLY = b"OK 0 1\r\n"


class Echo(asyncio.Protocol):
    def __init__(self, request_bytes: int) -> None:
        self.request_bytes = request_bytes
        self.unanswered_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(
            asyncio.Transport, transport
        )  # uvloop's is one in all but its base class

    def data_received(self, data: bytes) -> None:
        requests, self.unanswered_bytes = divmod(
            self.unanswered_bytes + len(data), self.request_bytes
        )
        if requests:
            self.transport.write(REPLY * requests)


async def serve(request_bytes: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Echo(request_bytes), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"ready tcp={host}:{port}", file=sys.stderr, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
