"""The asyncio clients under one name: `from logd.aio import Client, Reader, Writer`."""

from __future__ import annotations

from logd.aio_client import Client
from logd.aio_reader import Reader
from logd.aio_writer import Writer
from logd.reading import Message

__all__ = ["Client", "Message", "Reader", "Writer"]
