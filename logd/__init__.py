"""logd: ordered, append-only topics on one machine's disk, over a protocol a person can type."""

from __future__ import annotations

from logd.client import Client
from logd.reader import Message, Reader
from logd.writer import Writer

__all__ = ["Client", "Message", "Reader", "Writer"]
__version__ = "0.1.0"
