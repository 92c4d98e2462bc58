"""The HTTP listener: the route table, the checks before routing, and the server's lifecycle.

Starlette routes and uvicorn serves, in the event loop of the daemon. Each route is a function in
the module of its family in `logd.web`. Nothing here knows how a command is executed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from logd.config import Config
from logd.errors import LogdError
from logd.net.tls import ListenerContext
from logd.service import Service
from logd.storage.periodic_tasks import for_each
from logd.tcp import Connections
from logd.web import (
    elasticsearch,
    ingestion,
    journal_upload,
    loki,
    messages,
    metrics,
    openapi,
    server_sent_events,
    static_files,
    status,
)
from logd.web.authentication import OPEN_PATHS, grant_of
from logd.web.error_response import (
    error_response,
    handle_error,
    handle_not_found,
    method_not_allowed,
)
from logd.web.host_check import SAFE_HEADERS, HostCheck
from logd.web.log_route import post_log
from logd.web.message_stream import Disconnected
from logd.web.read_threads import ReadThreads
from logd.web.request import HttpContext, HttpRequest
from logd.web.uvicorn_connection import protocol_class

Handler = Callable[[HttpRequest], Awaitable[Response]]
_GET, _POST = ("GET",), ("POST",)
_MAX_LOGGED_PATH = 100  # characters
_STOP_S = 1.0  # for requests in progress when the daemon stops

# `POST /log` is not here: it needs no request object, see `App.__call__`.
ROUTES: list[tuple[str, tuple[str, ...], Handler]] = [
    ("/topics", _GET, status.get_topics),
    ("/topics/{topic}", _GET, status.get_topic),
    ("/topics/{topic}", _POST, ingestion.post_messages),
    ("/topics/{topic}/messages", _GET, messages.get_messages),
    ("/topics/{topic}/follow", _GET, server_sent_events.get_events),
    ("/stats", _GET, status.get_stats),
    ("/metrics", _GET, metrics.get_metrics),
    ("/loki/api/v1/push", _POST, loki.post_streams),
    ("/upload", _POST, journal_upload.post_upload),
    ("/topics/{topic}/upload", _POST, journal_upload.post_upload),
    ("/_bulk", ("POST", "PUT"), elasticsearch.post_bulk),
    ("/{index}/_bulk", ("POST", "PUT"), elasticsearch.post_bulk),
    ("/{index}/_doc", _POST, elasticsearch.post_document),
    ("/_refresh", ("GET", "POST"), elasticsearch.refresh),
    ("/{index}/_refresh", ("GET", "POST"), elasticsearch.refresh),
    ("/_cat/health", _GET, elasticsearch.get_health),
    ("/openapi.json", _GET, openapi.get_openapi),
    ("/healthz", _GET, status.get_health),
    ("/readyz", _GET, status.get_readiness),
    ("/", _GET, static_files.get_root),
    ("/page/{name}", _GET, static_files.get_file),
]


class App:
    """The ASGI application."""

    def __init__(self, service: Service, connections: Connections, config: Config) -> None:
        self.service, self._connections = service, connections
        self.is_stopping = False
        self._context = HttpContext(
            service, lambda: self.is_stopping, connections.budget, ReadThreads(), set()
        )
        self.take(config)
        self._routes = [self._route(*route) for route in ROUTES]
        handlers: dict[Any, Any] = {
            LogdError: handle_error, 404: handle_not_found, 405: self._handle_not_allowed,
        }  # fmt: skip
        self._app = Starlette(routes=self._routes, exception_handlers=handlers)

    def _route(self, path: str, methods: tuple[str, ...], handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            return await handler(HttpRequest(request, self._context))

        return Route(path, endpoint, methods=methods)

    def take(self, config: Config) -> None:
        """Apply the settings, at the start and after a reload."""
        self._host_check = HostCheck(config.http_names)
        for stream in list(self._context.streams):
            stream.check_rights()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = self._wrap_send(scope, send)
        try:
            self._host_check.check(scope["headers"])
            access = self.service.access
            if access is not None and scope["path"] not in OPEN_PATHS:
                scope["grant"] = grant_of(access, scope)
        except LogdError as error:
            scope["rejection"] = error
            await error_response(error)(scope, receive, send)
            return
        if scope["path"] == "/log" and scope["method"] == "POST":
            await post_log(self._connections, scope, receive, send)
        elif scope["path"] == "/log":
            await method_not_allowed({"POST"})(scope, receive, send)
        else:
            try:
                await self._app(scope, receive, send)
            except asyncio.CancelledError:
                if not self.is_stopping:
                    raise
                # Cancelled by `HttpServer.stop`, which has aborted the connection.

    def _wrap_send(self, scope: Scope, send: Send) -> Send:
        """Add headers to each response, and log those with an error status."""
        headers = SAFE_HEADERS
        if elasticsearch.is_elasticsearch_path(scope["path"]):
            headers = (*headers, elasticsearch.PRODUCT)

        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
                if message["status"] >= 400:
                    self._log_rejection(scope, message["status"])
            await send(message)

        return wrapped

    def _log_rejection(self, scope: Scope, status_code: int) -> None:
        rejections = self.service.rejection_log
        client = scope["client"][0] if scope["client"] else ""
        error = scope.get("rejection")
        if isinstance(error, Disconnected):
            return  # nothing was rejected, and no client gets the response
        if error is not None:
            rejections.note(error, client)
        elif scope["path"] not in OPEN_PATHS:  # status 503 of /readyz is not an error
            request = f"{scope['method']} {scope['path'][:_MAX_LOGGED_PATH]}"
            rejections.note_code(f"http-{status_code}", client, request)

    async def _handle_not_allowed(self, request: Request, error: Exception) -> Response:
        """Several routes may have the same path, for different methods."""
        matching = [one for one in self._routes if one.path_regex.match(request.url.path)]
        return method_not_allowed(set().union(*(one.methods or () for one in matching)))


class HttpServer:
    """uvicorn in the daemon's event loop, without signal handlers and logging of its own."""

    def __init__(self, app: App, config: Config, tls: ListenerContext | None) -> None:
        self.app = app
        settings = uvicorn.Config(
            app, loop="none", http=protocol_class(app.service), ws="none",
            lifespan="off", log_config=None, access_log=False, server_header=False,
            date_header=False, timeout_keep_alive=int(config.idle_timeout_s) + 1,
            proxy_headers=False, backlog=1024,
        )  # fmt: skip
        settings.load()
        settings.ssl = tls  # whose certificate can be replaced
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # the daemon logs the rest itself
        self._server = uvicorn.Server(settings)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        self._serving: asyncio.Task[None] | None = None

    async def start(
        self, host: str, port: int, passed: socket.socket | None = None
    ) -> socket.socket:
        """Listen, and return the bound socket: `passed`, if given, listens already."""
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
        """Disconnect clients that are too slow; called once per second."""
        connections = list(self._server.server_state.connections)
        for_each(connections, lambda connection: connection.check(now_s))  # type: ignore[union-attr]

    async def stop(self) -> None:
        """Accept no more requests; those in progress have a second and are then cancelled.

        Idle connections are closed before another request arrives: some clients send a request
        again if its connection is closed, but not if it is refused.
        """
        self.app.is_stopping = True
        self._server.should_exit = True
        for listener in self._server.servers:
            listener.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()
        if self._serving is not None:
            await asyncio.wait([self._serving], timeout=_STOP_S)
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            for request in list(self._server.server_state.tasks):
                request.cancel()  # it may wait for a search, which takes up to a minute
            await self._serving
