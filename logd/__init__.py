"""logd: ordered, append-only topics on one machine's disk, over a protocol a person can type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logd.addresses import ConnectionLost, Endpoint
    from logd.client import Client
    from logd.errors import LogdError
    from logd.handler import LogdHandler
    from logd.merging import TopicsReader
    from logd.reader import Reader
    from logd.reading import Message
    from logd.records import log_context
    from logd.requests import At
    from logd.writer import QueueFull, Writer

_HOMES = {
    "At": "requests",
    "Client": "client",
    "ConnectionLost": "addresses",
    "Endpoint": "addresses",
    "LogdError": "errors",
    "LogdHandler": "handler",
    "Message": "reading",
    "QueueFull": "writer",
    "Reader": "reader",
    "TopicsReader": "merging",
    "Writer": "writer",
    "log_context": "records",
}
__all__ = [
    "At",
    "Client",
    "ConnectionLost",
    "Endpoint",
    "LogdError",
    "LogdHandler",
    "Message",
    "QueueFull",
    "Reader",
    "TopicsReader",
    "Writer",
    "log_context",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the clients when they are first asked for: the daemon never needs them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'logd' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"logd.{_HOMES[name]}"), name)
