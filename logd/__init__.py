"""logd: ordered, append-only topics on one machine's disk, over a protocol a person can type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logd.client import Client
    from logd.handler import LogdHandler
    from logd.reader import Reader
    from logd.reading import Message
    from logd.records import log_context
    from logd.writer import Writer

__all__ = ["Client", "LogdHandler", "Message", "Reader", "Writer", "log_context"]
__version__ = "0.1.0"
_HOMES = {
    "Client": "client", "LogdHandler": "handler", "Message": "reading", "Reader": "reader",
    "Writer": "writer", "log_context": "records",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the clients when they are first asked for: the daemon never needs them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'logd' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"logd.{_HOMES[name]}"), name)
