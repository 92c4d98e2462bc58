"""The asyncio API: `from logd.aio import Client, Reader, Writer`."""

from __future__ import annotations

from logd.client.aio.client import AsyncClient as Client
from logd.client.aio.reader import AsyncReader as Reader
from logd.client.aio.writer import AsyncWriter as Writer
from logd.wire.read_state import Message

__all__ = ["Client", "Message", "Reader", "Writer"]
