"""uvicorn's HTTP connection, with limits on time, on the request head and on pipelined requests.

A client that takes longer than `request-timeout` to send a request, or reads nothing of a response
for `idle-timeout`, is disconnected. All connections are checked once per second; a request needs no
timer of its own. The bodies of `POST /log` and `POST /upload` have no time limit: each command and
each entry has its own. Without TLS, a response can be sent from files, see `send_slices`.

This module overrides internals of uvicorn, so `pyproject.toml` restricts the supported versions and
`tests/unit/test_uvicorn_connection.py` names what they must provide. Nothing else may import
`uvicorn.protocols`.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from logd.access.access_file import certificate_names
from logd.access.connection_limits import AdmittedConnection
from logd.errors import BadRequest, LogdError, TooLarge
from logd.net.large_replies import SendfileSender
from logd.net.tls import is_secure, peer_address
from logd.partition import Slice
from logd.service import Service

MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 * 1024
_UNLIMITED_BODY = re.compile(r"/log|(?:/topics/[^/]+)?/upload")
_HIGH_BYTES = 16 * 1024  # of a response that may wait in memory when a client does not read
_LINGER_S = 1.0
_HEAD_PIECE_BYTES, _BODY_PIECE_BYTES = 8 << 10, 64 << 10  # parsed at once: 300 requests, or 2,000


class HttpProtocol(HttpToolsProtocol):
    service: Service  # set by `protocol_class`
    entry: AdmittedConnection | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_HIGH_BYTES)
        self.flow = self._flow = _HoldableFlowControl(transport)
        self._unparsed = b""  # until the pipelined requests are answered
        self._names = certificate_names(transport.get_extra_info("peercert"))
        self._is_active = True  # since the last check
        self._active_at_s = self._begun_at_s = self.service.scheduler.monotonic_s()
        self._is_incomplete = self._is_in_head = self._is_unlimited = self._is_refused = False
        self._head_bytes = self._unsent_bytes = 0
        self._running: RequestResponseCycle | None = None  # the request that is being answered
        self._refusal = b""  # to be sent after the responses to earlier requests
        self._sender: SendfileSender | None = None  # made at the first response from files
        self._slices_sent: asyncio.Future[None] | None = None
        address, self._is_tls = peer_address(transport), is_secure(transport)
        self.entry = self.service.connection_limits.enter(address, had_turn=self._is_tls)
        refusal = self.entry.refusal
        if refusal is not None and not self.entry.is_answered:
            self.service.rejection_log.note(refusal, address)
            self._is_refused = True
            transport.abort()
        elif refusal is not None:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.entry is not None:
            self.service.connection_limits.leave(self.entry)
        self.pipeline.clear()
        self._unparsed = b""
        if self._sender is not None:
            self._sender.close()
            self._end_of_slices()
        if self._running is not None:
            _disconnect(self._running)  # uvicorn notifies the newest, which may not have begun
        self._unset_keepalive_if_required()  # after a reset a timer would keep this for minutes
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if len(data) <= _HEAD_PIECE_BYTES and not self._unparsed and not self.pipeline:
            self._parse_piece(data)
        else:
            self._unparsed += data
            self._parse()

    def _parse(self) -> None:
        """Parse the received data, up to the first requests that have to wait for others."""
        data, self._unparsed = memoryview(self._unparsed), b""
        if self.transport.is_closing():
            return
        while data and not self.pipeline and not self._is_refused:
            is_in_body = self.cycle is not None and self.cycle.more_body and not self._is_in_head
            size = _BODY_PIECE_BYTES if is_in_body else _HEAD_PIECE_BYTES
            self._parse_piece(bytes(data[:size]))
            data = data[size:]
        if not self._is_refused:
            self._unparsed = bytes(data)
        self._flow.hold(bool(self._unparsed))

    def _parse_piece(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._is_active = True
        if self._is_in_head:
            self._head_bytes += len(data)
        elif not self._is_incomplete and not self._is_unlimited:
            self._is_incomplete = True
            self._begun_at_s = self.service.scheduler.monotonic_s()
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES:
            text = f"the head of a request has at most {MAX_HEAD_BYTES} bytes"
            self._refuse(TooLarge(text), status=431)

    def _refuse(self, error: LogdError, status: int | None = None) -> None:
        """Refuse an incomplete request, once all requests before it are answered."""
        self.service.rejection_log.note(error, self.entry.address if self.entry is not None else "")
        status = status or error.status
        body = b'{"error":"%s","text":"%s"}' % (error.code.encode(), error.text.encode())
        headers = b"connection: close\r\ncontent-type: application/json\r\n"
        headers += b"content-length: %d\r\n" % len(body)
        headers += b"retry-after: 1\r\n" if status == 503 else b""
        self._refusal = STATUS_LINE[status] + headers + b"\r\n" + body
        self._is_refused = True
        invalid = self.cycle
        if invalid is not None and invalid.more_body:  # the body of this request is invalid
            if invalid.response_started:
                self.transport.abort()  # so that the part that was sent is not taken for the whole
                return
            _disconnect(invalid)
            self.pipeline = deque(entry for entry in self.pipeline if entry[0] is not invalid)
        self._send_refusal_in_order()

    def _send_refusal_in_order(self) -> None:
        running = self._running
        is_answered = running is None or running.response_complete or running.disconnected
        if self._refusal and is_answered and not self.pipeline and not self.transport.is_closing():
            self.transport.write(self._refusal)
            self._refusal = b""
            self._close_after_linger()

    def _close_after_linger(self) -> None:
        """Discard what arrives for a moment: a reset could overtake the response."""
        self._is_refused = True
        if self.transport.can_write_eof():  # TLS cannot
            self.transport.write_eof()
        self.service.scheduler.later(_LINGER_S, self.transport.close)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unparsed and not self.pipeline:
            self.loop.call_soon(self._parse)
        answered_early = self.cycle.response_complete and self.cycle.more_body
        if answered_early and not self.transport.is_closing():
            self._close_after_linger()
        else:
            self._send_refusal_in_order()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    # -- responses from files -------------------------------------------------------------------

    async def send_slices(self, slices: tuple[Slice, ...]) -> None:
        """Send these as a part of the current response, which has started and has a length."""
        cycle = self._running
        if cycle is None or self.transport.is_closing():
            return
        if self._sender is None:
            scheduler = self.service.scheduler
            try:
                self._sender = SendfileSender(self.transport, self._end_of_slices, scheduler)
            except OSError:  # no descriptor is left
                self.transport.abort()
                return
        self._slices_sent = self.loop.create_future()
        self._sender.send(b"", slices)
        await self._slices_sent
        cycle.expected_content_length -= sum(part.size for part in slices)

    def _end_of_slices(self) -> None:
        """They are sent, or the connection is lost."""
        if self._slices_sent is not None and not self._slices_sent.done():
            self._slices_sent.set_result(None)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._sender is not None:
            self._sender.resume()

    # -- callbacks of the HTTP parser -----------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_incomplete = self._is_in_head = True
        self._head_bytes = 0
        self.scope["abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        self.scope["is_gone"] = self.transport.is_closing  # type: ignore[typeddict-unknown-key]
        self.scope["client_names"] = self._names  # type: ignore[typeddict-unknown-key]
        if not self._is_tls:
            self.scope["send_slices"] = self.send_slices  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")  # the parser responds with 400
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()
        if not self.cycle.keep_alive:
            self.cycle.transport = cast(asyncio.Transport, _LingeringTransport(self.cycle))
        if self.scope["http_version"] == "1.0":
            self.cycle.send = _send_without_chunks(self.cycle)  # type: ignore[method-assign]
        self._is_unlimited = bool(_UNLIMITED_BODY.fullmatch(self.scope["path"]))
        self._is_incomplete = not self._is_unlimited

    def on_message_complete(self) -> None:
        self._is_incomplete = self._is_unlimited = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest("the request is not valid HTTP"))

    # -- time limits ----------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """Disconnect a client that is too slow; called once per second."""
        config, unsent_bytes = self.service.config, self.transport.get_write_buffer_size()
        is_served = self.cycle is not None and not self.cycle.response_complete
        is_reading = unsent_bytes != self._unsent_bytes or (is_served and not unsent_bytes)
        if self._sender is not None and self._sender.is_sending:
            is_reading, self._sender.has_sent = self._sender.has_sent, False
        if self._is_active or is_reading:
            self._is_active, self._active_at_s = False, now_s
        self._unsent_bytes = unsent_bytes
        if self._unparsed:  # the client waits for the daemon
            self._begun_at_s = now_s
        slow_s = now_s - self._begun_at_s if self._is_incomplete else 0.0
        if slow_s > config.request_timeout_s or now_s - self._active_at_s > config.idle_timeout_s:
            self.transport.abort()


class _HoldableFlowControl(FlowControl):
    """Does not resume reading while received data waits to be parsed, even if uvicorn wants to."""

    _is_held = False

    def hold(self, is_held: bool) -> None:
        if is_held != self._is_held:
            self._is_held = is_held
            self.pause_reading() if is_held else self.resume_reading()

    def resume_reading(self) -> None:
        if not self._is_held:
            super().resume_reading()


class _LingeringTransport:
    """The transport of the last request of a connection. If that is answered before it has arrived
    completely, `on_response_complete` closes the connection, where uvicorn would cause a reset."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._close = cycle, cycle.transport.close
        self.write, self.is_closing = cycle.transport.write, cycle.transport.is_closing

    def close(self) -> None:
        if not (self._cycle.response_complete and self._cycle.more_body):
            self._close()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tell the handler of this request that its client has disconnected."""
    cycle.disconnected = not cycle.response_complete
    cycle.waiting_for_100_continue = False  # or the client would still be told to continue
    cycle.message_event.set()


def _send_without_chunks(cycle: RequestResponseCycle) -> Any:
    """HTTP/1.0 has no chunks: the end of the connection is the end of the response."""
    send = cycle.send

    async def send_unchunked(message: Any) -> None:
        cycle.chunked_encoding = False
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_unchunked


def protocol_class(service: Service) -> type[Any]:
    """For uvicorn, which makes one instance for each connection."""
    return type("ServiceHttpProtocol", (HttpProtocol,), {"service": service})
