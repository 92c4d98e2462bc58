"""A whole topic, read over the wire: every sum checked, every offset one behind the last."""

from __future__ import annotations

from dataclasses import dataclass

from logd import Client
from logd.errors import Internal
from logd.wire.commands import Batches
from tests.support.daemon import batches

_READ_TRIES = 100


class Broken(AssertionError):
    """The daemon broke a promise."""


@dataclass(frozen=True, slots=True)
class Log:
    """All messages of a topic."""

    first: int
    messages: list[bytes]

    @property
    def next(self) -> int:
        return self.first + len(self.messages)


def read_all(client: Client, topic: str) -> Log:
    """The whole topic over the wire, every sum checked and every offset one behind the last."""
    info = client.topics(topic)[0]
    found: list[bytes] = []
    at = info.first
    while at < info.next:
        got = _read(client, topic, at, info.next - at)
        if not got.messages:
            raise Broken(f"{topic}: nothing at {at}, and the end should be {info.next}")
        for batch in batches(bytes(got.data)):
            if batch.header.offset != at or len(batch.messages) != batch.header.messages:
                raise Broken(f"{topic}: {batch.header} where {at} was due")
            found += batch.messages
            at = batch.header.next
    return Log(info.first, found)


def _read(client: Client, topic: str, at: int, messages: int) -> Batches:
    """READ, once more where the answer says that this helps: what is read may not be cached."""
    for _ in range(_READ_TRIES):
        try:
            return client.read(topic, at, messages)
        except Internal as error:
            if "retry" not in error.text:
                raise
    raise Broken(f"{topic}: READ at {at} did not succeed in {_READ_TRIES} tries")
