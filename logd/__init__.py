"""logd: ordered, append-only topics on one machine's disk, over a protocol a person can type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logd.client.client import Client as Client
    from logd.client.delivery import QueueFull as QueueFull
    from logd.client.reader import Reader as Reader
    from logd.client.topics_reader import TopicsReader as TopicsReader
    from logd.client.writer import Writer as Writer
    from logd.errors import LogdError as LogdError
    from logd.logging.handler import LogdHandler as LogdHandler
    from logd.logging.records import log_context as log_context
    from logd.wire.addresses import ConnectionLost as ConnectionLost
    from logd.wire.addresses import Endpoint as Endpoint
    from logd.wire.read_state import Message as Message
    from logd.wire.requests import At as At

_MODULES = {
    "At": "wire.requests",
    "Client": "client.client",
    "ConnectionLost": "wire.addresses",
    "Endpoint": "wire.addresses",
    "LogdError": "errors",
    "LogdHandler": "logging.handler",
    "Message": "wire.read_state",
    "QueueFull": "client.delivery",
    "Reader": "client.reader",
    "TopicsReader": "client.topics_reader",
    "Writer": "client.writer",
    "log_context": "logging.records",
}
__all__ = [*_MODULES]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the clients when they are first used: the daemon does not need them."""
    if name not in _MODULES:
        raise AttributeError(f"module 'logd' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"logd.{_MODULES[name]}"), name)
