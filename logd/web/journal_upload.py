"""`POST /upload`: journal entries from `systemd-journal-upload`, in the journal export format.

    __REALTIME_TIMESTAMP=1767225600000000
    MESSAGE=hello

A binary value has its name on a line of its own, then its size in 8 bytes, little-endian, then the
value and LF. An empty line ends an entry. Each entry becomes one message: JSON with its fields.

With `--follow` a request lasts as long as the sender runs. So entries are stored as they arrive.
Only one incomplete entry is held in memory, which is counted against the daemon's budget.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response

from logd.errors import BadRequest, TooLarge
from logd.web.batch_builder import BatchBuilder, PushBody, RequestQuota
from logd.web.request import HttpRequest
from logd.web.request_body import BodyMemory, receive_parts
from logd.wire.text import encode

TOPIC = "journal"
MAX_ENTRY_BYTES = 1 << 20
MAX_FIELDS = 1024  # of one entry, as in systemd
_NAME = re.compile(rb"[A-Za-z0-9_]{1,64}")
_SIZE_BYTES = 8
_JSON_GROWTH = 10  # at most: two bytes of a field can become `"A_base64": "/w==", `
_NOT_EXPORT = "the body is not in the journal export format; `journalctl -o export` writes it"


async def post_upload(request: HttpRequest) -> Response:
    topic = request.topic if request.path_params else TOPIC
    if request.headers.get("content-encoding", "identity") != "identity":
        raise BadRequest("send the journal uncompressed, without Content-Encoding")
    return JSONResponse({"messages": await _store_entries(request, topic)})


async def _store_entries(request: HttpRequest, topic: str) -> int:
    """Store entries as they arrive, and return their number."""
    parser, memory, stored = ExportParser(), BodyMemory(request.context.budget), 0
    parts = receive_parts(request)
    timeout_s = request.context.service.config.request_timeout_s
    try:
        while True:
            part = await _next_part(parts, timeout_s if parser.held_bytes else None)
            work = partial(parser.feed, part) if part is not None else parser.finish
            entries = await request.parse(part or b"", work)
            memory.hold(parser.held_bytes, closes=True)
            if entries.messages:
                stored += (await request.push(topic, entries)).messages
            if part is None:
                return stored
    finally:
        memory.release()


async def _next_part(parts: AsyncIterator[bytes], timeout_s: float | None) -> bytes | None:
    """The next part of the body, None at its end. The rest of an entry must arrive in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await anext(parts, None)
    except TimeoutError:
        text = "the rest of an entry did not arrive within request-timeout"
        raise BadRequest(text, closes=True) from None


class ExportParser:
    """Parses bytes of the export format into messages, however they are split."""

    def __init__(self) -> None:
        self._rest = bytearray()  # an incomplete line or value
        self._fields: list[tuple[bytes, bytes]] = []  # of an incomplete entry
        self._field_bytes = 0

    @property
    def held_bytes(self) -> int:
        return len(self._rest) + self._field_bytes

    def feed(self, data: bytes) -> PushBody:
        """The entries that these bytes complete."""
        self._rest += data
        messages = BatchBuilder(RequestQuota(_JSON_GROWTH * self.held_bytes))
        at = 0
        while (end := self._rest.find(b"\n", at)) >= 0:
            if end == at:
                self._end_entry(messages)
                at += 1
                continue
            done = self._parse_field(at, end)
            if not done:
                break
            at = done
        del self._rest[:at]
        if self.held_bytes > MAX_ENTRY_BYTES:
            raise _too_large()
        return messages.build()

    def finish(self) -> PushBody:
        """Complete the last entry, which may lack its empty line."""
        if self._rest:
            raise BadRequest("the body ends in the middle of an entry")
        return self.feed(b"\n")

    def _parse_field(self, at: int, end: int) -> int:
        """Parse the field whose first line is `[at:end]`, and return the position of the next one;
        0 if the field is incomplete."""
        name, equals, value = bytes(self._rest[at:end]).partition(b"=")
        if not equals:
            start = end + 1 + _SIZE_BYTES
            size = int.from_bytes(self._rest[end + 1 : start], "little")
            if len(self._rest) < start:
                return 0
            if size > MAX_ENTRY_BYTES:
                raise _too_large()
            end = start + size
            if len(self._rest) <= end:
                return 0
            if self._rest[end : end + 1] != b"\n":
                raise BadRequest(_NOT_EXPORT)
            value = bytes(self._rest[start:end])
        if not _NAME.fullmatch(name):
            raise BadRequest(_NOT_EXPORT)
        if len(self._fields) == MAX_FIELDS:
            raise TooLarge(f"a journal entry has at most {MAX_FIELDS} fields", closes=True)
        self._fields.append((name, value))
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > MAX_ENTRY_BYTES:
            raise _too_large()
        return end + 1

    def _end_entry(self, messages: BatchBuilder) -> None:
        if self._fields:
            messages.add(_message(self._fields))
        self._fields, self._field_bytes = [], 0


def _too_large() -> TooLarge:
    return TooLarge(f"a journal entry has at most {MAX_ENTRY_BYTES} bytes", closes=True)


def _message(fields: list[tuple[bytes, bytes]]) -> bytes:
    """A name that occurs several times has an array of its values."""
    found: dict[str, list[str]] = {}
    for name, value in fields:
        key = name.decode()
        try:
            text = value.decode()
        except UnicodeDecodeError:
            key, text = f"{key}_base64", b64encode(value).decode()
        found.setdefault(key, []).append(text)
    entry: dict[str, Any] = {key: one[0] if len(one) == 1 else one for key, one in found.items()}
    return encode(entry).encode()
