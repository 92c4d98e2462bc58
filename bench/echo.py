"""A bare uvloop server: the cost of a Python event loop alone.

python -m bench.echo REQUEST_BYTES [BODY_BYTES | fan]

It knows the length of a request, does not parse it, and replies with a constant line, or with a
reply to READ with a body of BODY_BYTES. As a fan it also forwards its input to all other
connections, after greeting each so that the client knows that it is connected. No server on this
loop that parses requests can be faster. It runs in its own process.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import cast

import uvloop

REPLY = b"OK 0 1\r\n"


class Echo(asyncio.Protocol):
    def __init__(self, request_bytes: int, reply: bytes = REPLY) -> None:
        self.request_bytes = request_bytes
        self.reply = reply
        self.unanswered_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The class of uvloop is not a subclass of it.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        requests, self.unanswered_bytes = divmod(
            self.unanswered_bytes + len(data), self.request_bytes
        )
        if requests:
            self.transport.write(self.reply * requests)


class Fan(Echo):
    def __init__(self, request_bytes: int, everyone: set[asyncio.Transport]) -> None:
        super().__init__(request_bytes)
        self.everyone = everyone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.everyone.add(self.transport)
        self.transport.write(REPLY)

    def connection_lost(self, exc: Exception | None) -> None:
        self.everyone.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        for other in self.everyone:
            if other is not self.transport:
                other.write(data)


def protocol(request_bytes: int, mode: str) -> Callable[[], Echo]:
    if mode == "fan":
        return partial(Fan, request_bytes, set())
    if mode:
        body = bytes(int(mode))
        return partial(Echo, request_bytes, b"BATCHES 0 1 %d\r\n%s" % (len(body), body))
    return partial(Echo, request_bytes)


async def serve(request_bytes: int, mode: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol(request_bytes, mode), "127.0.0.1", 0, backlog=1024)
    host, port = server.sockets[0].getsockname()
    print(f"ready tcp={host}:{port}", file=sys.stderr, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), "".join(sys.argv[2:])))
