"""logd: ordered, append-only topics on one machine's disk, over a protocol a person can type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logd.client import Client
    from logd.reader import Reader
    from logd.reading import Message
    from logd.writer import Writer

__all__ = ["Client", "Message", "Reader", "Writer"]
__version__ = "0.1.0"
_HOMES = {"Client": "client", "Message": "reading", "Reader": "reader", "Writer": "writer"}


def __getattr__(name: str) -> Any:
    """Import the clients when they are first asked for: the daemon never needs them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'logd' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"logd.{_HOMES[name]}"), name)
