"""The first line of a reply, as a client takes it apart."""

from __future__ import annotations

import re
from typing import NamedTuple

from logd.errors import BadRequest, from_code
from logd.requests import quote


class Reply(NamedTuple):
    """The first line of a reply: its word, its numbers, and how many bytes follow it."""

    word: str
    numbers: tuple[int, ...]
    body_bytes: int


_REPLY = re.compile(
    rb"(OK)(?: ([0-9]{1,19}) ([0-9]{1,19}))?|(TEXT) ([0-9]{1,19})"
    rb"|(BATCHES) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19})"
)


def parse_reply(line: bytes) -> Reply:
    """A reply's first line, its end included; raises the error that an ERR line carries."""
    line = line.rstrip(b"\r\n")
    if line.startswith(b"ERR "):
        code, _, text = line[4:].partition(b" ")
        raise from_code(code.decode("ascii", "replace"), text.decode("ascii", "replace"))
    match = _REPLY.fullmatch(line)
    if match is None:
        raise BadRequest(f"the server answered something that is not the protocol: {quote(line)}")
    word, *rest = [group for group in match.groups() if group is not None]
    numbers = tuple(map(int, rest))
    return Reply(word.decode(), numbers, 0 if word == b"OK" else numbers[-1])
