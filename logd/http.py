"""The second door: HTTP onto the same commands. Routes, errors, and the server's life.

Starlette routes and uvicorn serves, in the daemon's own loop. Nothing here knows how a command is
carried out: it turns requests into those of the protocol, and answers into HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from logd.access.access_file import Grant
from logd.access.connection_limits import network
from logd.config import Config
from logd.errors import (
    TRY_AGAIN,
    BadRequest,
    LogdError,
    NotFound,
    OutOfRange,
    TooLarge,
    Unauthorized,
)
from logd.net.tls import ListenerContext
from logd.service import Service, TableReply
from logd.storage.periodic_tasks import for_each
from logd.tcp import Connections
from logd.web import (
    elasticsearch,
    elasticsearch_bulk,
    ingestion,
    journal_export,
    loki,
    metrics,
    openapi,
    reads,
    request_body,
    static_files,
)
from logd.web.async_service import AsyncService
from logd.web.authentication import CHALLENGES, OPEN_PATHS, grant_of
from logd.web.batch_rendering import EVENTS
from logd.web.host_check import SAFE_HEADERS, HostCheck
from logd.web.log_route import post_log
from logd.web.read_threads import ReadThreads
from logd.web.streaming_response import StreamResponse, Streams
from logd.web.uvicorn_connection import bounded
from logd.wire.commands import TopicInfo
from logd.wire.requests import Read, Topics, number, topic_glob, topic_name

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
RETRY_AFTER_S = 1
_LOGGED_PATH = 100  # characters
_JSON = "application/json"
_GRACE_S = 1.0  # for what is under way when the daemon stops


class App:
    """The ASGI application."""

    def __init__(self, service: Service, connections: Connections, config: Config) -> None:
        self.asking = AsyncService(service)
        self.page = static_files.Page()
        self._connections = connections
        self._steps, self._streams = ReadThreads(), Streams()
        self.take(config)
        self.routes = [
            Route("/topics", self.topics),
            Route("/topics/{topic}", self.topic, methods=["GET"]),
            Route("/topics/{topic}", self.push, methods=["POST"]),
            Route("/topics/{topic}/messages", self.messages),
            Route("/topics/{topic}/follow", self.follow),
            Route("/stats", self.stats),
            Route("/metrics", self.metrics),
            Route("/loki/api/v1/push", self.loki, methods=["POST"]),
            Route("/upload", self.upload, methods=["POST"]),
            Route("/topics/{topic}/upload", self.upload, methods=["POST"]),
            Route("/_bulk", self.bulk, methods=["POST", "PUT"]),
            Route("/{index}/_bulk", self.bulk, methods=["POST", "PUT"]),
            Route("/{index}/_doc", self.document, methods=["POST"]),
            Route("/_refresh", self.refresh, methods=["GET", "POST"]),
            Route("/{index}/_refresh", self.refresh, methods=["GET", "POST"]),
            Route("/_cat/health", self.cat_health),
            Route("/openapi.json", self.openapi),
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route("/", self.root),
            Route("/page/{name}", self.page.file),
        ]
        handlers: dict[Any, Any] = {LogdError: refused, 404: not_found, 405: self.not_allowed}
        self._app = Starlette(routes=self.routes, exception_handlers=handlers)

    def take(self, config: Config) -> None:
        """The settings, at the start and after a reload."""
        self._guard = HostCheck(config.http_names)
        self._streams.judge_again()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        product = [elasticsearch.PRODUCT] if elasticsearch.names_product(scope["path"]) else []
        send = _with_headers(send, [*SAFE_HEADERS, *product])
        send = self._noting_rejections(scope, send)
        try:
            self._guard.check(scope["headers"])
            access = self.asking.service.access
            if access is not None and scope["path"] not in OPEN_PATHS:
                scope["grant"] = grant_of(access, scope)
        except LogdError as error:
            scope["rejection"] = error
            await _refusal(error)(scope, receive, send)  # type: ignore[arg-type]
            return
        if scope["path"] == "/log" and scope["method"] == "POST":
            await post_log(self._connections, scope, receive, send)
        elif scope["path"] == "/log":
            await _not_allowed({"POST"})(scope, receive, send)  # type: ignore[arg-type]
        else:
            try:
                await self._app(scope, receive, send)  # type: ignore[arg-type]
            except asyncio.CancelledError:
                if not self.asking.stopping:
                    raise
                # By the stop, which has aborted the connection: nothing to log, nothing to answer.

    def _noting_rejections(self, scope: Scope, send: Send) -> Send:
        """Let the daemon's log say what was rejected, whatever answered it."""

        async def noting(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                rejections = self.asking.service.rejections
                client = scope["client"][0] if scope["client"] else ""
                error = scope.get("rejection")
                if isinstance(error, reads.Disconnected):
                    pass  # nothing was rejected, and nobody gets the answer
                elif error is not None:
                    rejections.note(error, client)
                elif scope["path"] not in OPEN_PATHS:  # a 503 of /readyz is an answer
                    what = f"{scope['method']} {scope['path'][:_LOGGED_PATH]}"
                    rejections.note_code(f"http-{message['status']}", client, what)
            await send(message)

        return noting

    # -- routes ---------------------------------------------------------------------------------

    async def topics(self, request: Request) -> Response:
        glob = topic_glob(request.query_params.get("glob", "*").encode("utf-8", "replace"))
        topics: list[TopicInfo] = (await self._asking(request).reply(Topics(glob), TableReply)).rows
        return JSONResponse([topic._asdict() for topic in topics])

    async def topic(self, request: Request) -> Response:
        ingestion.refuse_query(request.query_params)
        return JSONResponse(await self._asking(request).stats(_topic(request)))

    async def stats(self, request: Request) -> Response:
        return JSONResponse(await self._asking(request).stats())

    async def messages(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        asked = reads.wanted(_topic(request), dict(request.query_params), accept)
        if request.method == "HEAD":
            return Response(media_type=asked.form)
        source = self._source(request)
        if asked.form != reads.RAW:
            return await self._stream(request, asked, reads.messages(source, asked))
        planned = await reads.planned_raw(source.asking, asked)
        headers = {"logd-offset": str(planned.offset), "logd-messages": str(planned.messages)}
        headers["content-length"] = str(planned.size)
        batches = reads.raw(source, planned, asked.topic)
        return await self._stream(request, asked, batches, headers)

    async def follow(self, request: Request) -> Response:
        asked = reads.wanted(_topic(request), dict(request.query_params), "")
        asked.form = EVENTS
        if "from" not in request.query_params and "since" not in request.query_params:
            asked.start = "next"
        last = request.headers.get("last-event-id")
        if last:
            asked.start = number(last.encode("ascii", "replace"), "Last-Event-ID") + 1
        # What is wrong is told before the stream begins: then it is too late.
        source = self._source(request)
        known = await source.asking.stats(asked.topic)
        source.asking.check(Read(asked.topic, asked.start, 1))
        first, next_ = known["first"], known["next"]
        at = asked.start
        if isinstance(at, int) and (at > next_ or (at < first and last is None)):
            raise OutOfRange(f"first={first} next={next_}")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type=EVENTS, headers=headers)
        events = reads.followed(source, asked, or_first=last is not None)
        return await self._stream(request, asked, events, headers)

    def _source(self, request: Request) -> reads.TopicReads:
        grant, scope = request.scope.get("grant"), request.scope
        address = scope["client"][0] if scope["client"] else ""
        client = f"address {network(address)}" if grant is None else f"token {grant.name}"
        return reads.TopicReads(self._asking(request), self._steps, client, scope["is_gone"])

    async def _stream(
        self, request: Request, asked: reads.ReadParameters, pieces: AsyncGenerator[bytes, None],
        headers: dict[str, str] | None = None,
    ) -> Response:  # fmt: skip
        """A response that begins when there is something to send: until then it can be refused."""
        try:
            first = await anext(pieces)
        except StopAsyncIteration:
            first = b""
        return StreamResponse(
            self._streams, self._asking(request), asked.topic, first, pieces,
            media_type=asked.form, headers=headers,
        )  # fmt: skip

    async def push(self, request: Request) -> Response:
        topic, id_ = _topic(request), ingestion.checked_id(request.query_params.get("id"))
        async with self._body(request) as body:
            kind = request.headers.get("content-type", "")
            parse = partial(ingestion.messages_of, body, kind, self._limit_bytes)
            packed = await ingestion.parse(self.asking, body, parse)
            pushed = await ingestion.push(self._asking(request), topic, packed, id_)
        return JSONResponse(pushed._asdict())

    async def loki(self, request: Request) -> Response:
        if "protobuf" in request.headers.get("content-type", ""):
            error = {"error": "bad-request", "text": "send JSON; protobuf is not spoken here"}
            return JSONResponse(error, 415)
        async with self._body(request) as body:
            parse = partial(loki.messages_of, body, self._limit_bytes)
            topics = await ingestion.parse(self.asking, body, parse)
            for topic, packed in topics.items():
                await ingestion.push(self._asking(request), topic, packed)
        return Response(status_code=204)

    async def upload(self, request: Request) -> Response:
        topic = _topic(request) if request.path_params else journal_export.TOPIC
        if request.headers.get("content-encoding", "identity") != "identity":
            raise BadRequest("send the journal uncompressed, without Content-Encoding")
        pieces, budget = request_body.pieces(request), self._connections.budget
        entry_s = self.asking.service.config.request_timeout_s
        stored = await journal_export.upload(self._asking(request), topic, pieces, budget, entry_s)
        return JSONResponse({"messages": stored})

    async def bulk(self, request: Request) -> Response:
        async with self._body(request) as body:
            index = request.path_params.get("index")
            parse = partial(elasticsearch_bulk.Bulk, body, index, self._limit_bytes)
            bulk = await ingestion.parse(self.asking, body, parse)
            refusal = await bulk.store(self._asking(request))
        request.scope["rejection"] = refusal
        return _bulk_response(bulk, refusal)

    async def document(self, request: Request) -> Response:
        index = request.path_params["index"]
        topic = ingestion.topic_for(index)
        async with self._body(request) as body:
            parse = partial(ingestion.document, body)
            packed = await ingestion.parse(self.asking, body, parse)
            pushed = await ingestion.push(self._asking(request), topic, packed)
        return JSONResponse(elasticsearch.created(index, pushed.offset), 201)

    async def refresh(self, request: Request) -> Response:
        """What is stored can be read already."""
        return JSONResponse({"_shards": elasticsearch.SHARDS})

    def _body(self, request: Request) -> AbstractAsyncContextManager[bytes]:
        budget = self._connections.budget
        return request_body.body(request, self._limit_bytes, budget, self.asking.compute)

    @property
    def _limit_bytes(self) -> int:
        return self.asking.service.config.max_batch_bytes

    def _asking(self, request: Request) -> AsyncService:
        """In the name of whoever asks."""
        return self.asking.by(request.scope.get("grant"))

    async def root(self, request: Request) -> Response:
        if elasticsearch.wants_info(request.headers):
            return JSONResponse(elasticsearch.INFO, headers=elasticsearch.VARY)
        answer = await self.page.index(request)
        answer.headers.update(elasticsearch.VARY)
        return answer

    async def not_allowed(self, request: Request, error: Exception) -> Response:
        """Several routes may have one path, each for other methods."""
        matching = [one for one in self.routes if one.path_regex.match(request.url.path)]
        return _not_allowed(set().union(*(one.methods or () for one in matching)))

    async def metrics(self, request: Request) -> Response:
        grant: Grant | None = request.scope.get("grant")
        if grant is not None:
            grant.check_rules()
        page = metrics.page(self.asking.service)
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi.DOCUMENT)

    async def cat_health(self, request: Request) -> Response:
        """What senders of the bulk form ask before they send."""
        reasons = self._not_ready()
        return PlainTextResponse(
            "logd red\n" if reasons else "logd green\n", 503 if reasons else 200
        )

    async def healthz(self, request: Request) -> Response:
        """The loop turns: this answer shows it."""
        return JSONResponse({"ok": True})

    async def readyz(self, request: Request) -> Response:
        reasons = self._not_ready()
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    def _not_ready(self) -> list[str]:
        stopping = ["the daemon is stopping"] if self.asking.stopping else []
        return self.asking.service.not_ready() + stopping


# -- answers ------------------------------------------------------------------------------------


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, LogdError)
    # Its traceback and its cause refer to the body, which uvicorn's cycle would keep for a while.
    error.__context__ = None
    request.scope["rejection"] = error.with_traceback(None)
    return _refusal(error)


async def not_found(request: Request, error: Exception) -> Response:
    text = f"there is nothing at {request.url.path[:80]!r}; docs/http.md lists what there is"
    return _refusal(NotFound(text))


def _not_allowed(methods: set[str]) -> Response:
    allowed = ", ".join(sorted(methods))
    text = f"this path does not have the method of the request; it has {allowed}"
    body = {"error": BadRequest.code, "text": text}
    return JSONResponse(body, 405, headers={"allow": allowed})


def _refusal(error: LogdError) -> Response:
    body = {"error": error.code, "text": error.text}
    response = JSONResponse(body, error.status, headers=_refusal_headers(error))
    if isinstance(error, Unauthorized):
        response.raw_headers += CHALLENGES
    return response


def _refusal_headers(error: LogdError) -> dict[str, str]:
    headers = {"retry-after": str(RETRY_AFTER_S)} if isinstance(error, TRY_AGAIN) else {}
    if error.closes and not isinstance(error, TooLarge):  # whose rest is swallowed first
        headers["connection"] = "close"
    return headers


def _bulk_response(bulk: elasticsearch_bulk.Bulk, refusal: LogdError | None) -> Response:
    """A short one is sent as a whole, with its length."""
    status = 200 if refusal is None else refusal.status
    headers = {} if refusal is None else _refusal_headers(refusal)
    pieces = bulk.response(refusal)
    if bulk.is_short:
        return Response(b"".join(pieces), status, headers, _JSON)

    async def streamed() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
            await asyncio.sleep(0)  # a client that takes all of it must not keep the loop

    return StreamingResponse(streamed(), status, headers, _JSON)


def _topic(request: Request) -> str:
    return topic_name(request.path_params["topic"].encode("utf-8", "replace"))


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def with_headers(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return with_headers


# -- the server ---------------------------------------------------------------------------------


class HttpServer:
    """uvicorn in a loop that belongs to somebody else: no signals, no logging set-up of its own."""

    def __init__(self, app: App, config: Config, tls: ListenerContext | None) -> None:
        self.app = app
        settings = uvicorn.Config(
            app, loop="none", http=bounded(app.asking.service), ws="none", lifespan="off",
            log_config=None, access_log=False, server_header=False, date_header=False,
            timeout_keep_alive=int(config.idle_timeout_s) + 1,
            proxy_headers=False, backlog=1024,
        )  # fmt: skip
        settings.load()
        settings.ssl = tls  # with a certificate that can be replaced
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # the daemon says what it does
        self._server = uvicorn.Server(settings)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        self._serving: asyncio.Task[None] | None = None

    async def start(
        self, host: str, port: int, passed: socket.socket | None = None
    ) -> socket.socket:
        """Listen; the bound socket. `passed` listens already, and is used instead."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = passed or socket.create_server((host, port), family=family, backlog=1024)
        serving = self._server.serve([listening])
        self._serving = asyncio.get_running_loop().create_task(serving, name="HTTP server")
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0.001)
        return listening

    def call_when_ended(self, ended: Callable[[asyncio.Task[None]], None]) -> None:
        assert self._serving is not None
        self._serving.add_done_callback(ended)

    def sweep(self, now_s: float) -> None:
        """Once a second: cut off who is too slow."""
        connections = list(self._server.server_state.connections)
        for_each(connections, lambda connection: connection.check(now_s))  # type: ignore[union-attr]

    async def stop(self) -> None:
        """Take no more requests; what is under way has a second, and is cancelled then.

        Connections that do nothing are closed before another request comes: for some senders an
        end is a reason to send again, and a refusal is not.
        """
        self.app.asking.stopping = True
        self._server.should_exit = True
        for listener in self._server.servers:
            listener.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()
        if self._serving is not None:
            await asyncio.wait([self._serving], timeout=_GRACE_S)
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            for request in list(self._server.server_state.tasks):
                request.cancel()  # it may wait for a search, which goes on for a minute
            await self._serving
