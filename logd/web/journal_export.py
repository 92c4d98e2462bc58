"""What `systemd-journal-upload` sends: entries of the journal in its export format.

    __REALTIME_TIMESTAMP=1767225600000000
    MESSAGE=hello

A value that is not a line of text has its name on a line of its own, then its size as 8 bytes, the
lowest first, then the value and LF. An empty line ends an entry. Each entry becomes one message:
JSON with its fields.

With `--follow` a request goes on for as long as the sender runs. So entries are stored as they
come, and what is held is one unfinished entry, paid for from the daemon's budget.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from logd.errors import BadRequest, Busy, TooLarge
from logd.protocol import Budget
from logd.web.async_service import AsyncService
from logd.web.batch_builder import Messages, Packed, Room
from logd.web.ingestion import parse, push
from logd.wire.text import encode

TOPIC = "journal"
MAX_ENTRY_BYTES = 1 << 20
MAX_FIELDS = 1024  # of one entry, as in systemd
_NAME = re.compile(rb"[A-Za-z0-9_]{1,64}")
_SIZE_BYTES = 8
_JSON_GROWTH = 10  # at most: two bytes of a field can become `"A_base64": "/w==", `
_NOT_EXPORT = (
    "the body is not in the export format of the journal; `journalctl -o export` writes it"
)


class Entries:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._rest = bytearray()  # an unfinished line or value
        self._fields: list[tuple[bytes, bytes]] = []  # of an unfinished entry
        self._field_bytes = 0

    @property
    def held_bytes(self) -> int:
        return len(self._rest) + self._field_bytes

    def feed(self, data: bytes) -> Packed:
        """The entries that these bytes complete."""
        self._rest += data
        messages = Messages(Room(_JSON_GROWTH * self.held_bytes))
        at = 0
        while (end := self._rest.find(b"\n", at)) >= 0:
            if end == at:
                self._end(messages)
                at += 1
                continue
            done = self._field(at, end)
            if not done:
                break
            at = done
        del self._rest[:at]
        if self.held_bytes > MAX_ENTRY_BYTES:
            raise _too_large()
        return messages.packed()

    def finish(self) -> Packed:
        """The body has ended. The last entry may lack its empty line."""
        if self._rest:
            raise BadRequest("the body ends in the middle of an entry")
        return self.feed(b"\n")

    def _field(self, at: int, end: int) -> int:
        """Take the field whose first line this is; where the next one starts, 0 if it is not all
        here."""
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
            raise TooLarge(f"an entry of the journal has at most {MAX_FIELDS} fields", closes=True)
        self._fields.append((name, value))
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > MAX_ENTRY_BYTES:
            raise _too_large()
        return end + 1

    def _end(self, messages: Messages) -> None:
        if self._fields:
            messages.add(_message(self._fields))
        self._fields, self._field_bytes = [], 0


def _too_large() -> TooLarge:
    return TooLarge(f"an entry of the journal has at most {MAX_ENTRY_BYTES} bytes", closes=True)


def _message(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Where a name comes several times, its values are an array."""
    found: dict[str, list[str]] = {}
    for name, value in fields:
        key = name.decode()
        try:
            text = value.decode()
        except UnicodeDecodeError:
            key, text = f"{key}_base64", b64encode(value).decode()
        found.setdefault(key, []).append(text)
    shown: dict[str, Any] = {key: one[0] if len(one) == 1 else one for key, one in found.items()}
    return encode(shown).encode()


async def upload(
    asking: AsyncService, topic: str, pieces: AsyncIterator[bytes], budget: Budget, entry_s: float
) -> int:
    """Store entries as they come; how many those were. The rest of an entry has `entry_s`."""
    entries, stored, held = Entries(), 0, 0
    try:
        while True:
            piece = await _next(pieces, entry_s if entries.held_bytes else None)
            work = partial(entries.feed, piece) if piece is not None else entries.finish
            packed = await parse(asking, piece or b"", work)
            budget.give(held)
            held = entries.held_bytes if budget.take(entries.held_bytes) else 0
            if held < entries.held_bytes:
                raise Busy("too many requests are under way; retry", closes=True)
            if packed.messages:
                stored += (await push(asking, topic, packed)).messages
            if piece is None:
                return stored
    finally:
        budget.give(held)


async def _next(pieces: AsyncIterator[bytes], wait_s: float | None) -> bytes | None:
    try:
        async with asyncio.timeout(wait_s):
            return await anext(pieces, None)
    except TimeoutError:
        text = "the rest of an entry did not come within request-timeout"
        raise BadRequest(text, closes=True) from None
