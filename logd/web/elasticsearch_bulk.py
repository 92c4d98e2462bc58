"""The Elasticsearch bulk request: actions with documents in, and what became of each out.

A request may hold as many documents as any body may hold messages. What is kept of each is five
bytes: which action it had, and which index. Its result follows from these and from what became of
the batch of its topic; so results are made while they are sent.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, NamedTuple

import msgspec

from logd.errors import TRY_AGAIN, BadRequest, LogdError
from logd.web import json_parser
from logd.web.async_service import AsyncService
from logd.web.batch_builder import Messages, Packed, Room
from logd.web.ingestion import messages_for, push, split, topic_for
from logd.wire.text import encode

_ACTIONS = ("index", "create", "update", "delete")
_REFUSED: dict[str, LogdError] = {
    "update": BadRequest("a log changes nothing that is stored; use create"),
    "delete": BadRequest("a log deletes nothing"),
}
_MAX_ACTION_BYTES = 4096
_MAX_INDICES = 1000  # in one request; a topic may have several
_MAX_KNOWN = 1000  # lines of actions that are not parsed again
_MAX_NAME = 255  # characters of an index, as in Elasticsearch
_AT_A_TIME = 500  # results in one piece of the response: 0.5 ms
_NOT_AN_ACTION = (
    "a line is not an action of the bulk form; an action is one of index, create, update and"
    ' delete, as {"index": {"_index": "<name>"}}'
)


class _Target(msgspec.Struct):
    index: str | None = msgspec.field(default=None, name="_index")


class _Index(NamedTuple):
    """An index that documents name: its name as JSON, and its topic or why there is none."""

    shown: str
    topic: str
    error: LogdError | None


class Bulk:
    def __init__(self, body: bytes, default_index: str | None, max_bytes: int) -> None:
        """Takes the body apart; BadRequest where that cannot be done."""
        self._begun_s = time.monotonic()
        self._default_index = default_index
        self._actions = bytearray()  # of each document, in order
        self._names = array("I")  # of each document, in order
        self._kinds: dict[tuple[int, int], None] = {}  # both, each combination once
        self._known: dict[bytes, tuple[str, int]] = {}  # actions by their lines
        self._indices: list[_Index] = []
        self._numbers: dict[str, int] = {}  # of the indices, by name
        self._outcomes: dict[str, int | LogdError] = {}  # of topics: the first offset, or why not
        self._packed = self._parse(body, Room(max_bytes))

    def _parse(self, body: bytes, room: Room) -> dict[str, Packed]:
        topics: dict[str, Messages] = {}
        lines = (line for line in split(body, 2) if line.strip())
        for line in lines:
            action, index = self._action(line)
            if action == "delete":
                room.count()
                continue
            document = next(lines, None)
            if document is None:
                raise BadRequest("the last action has no document")
            if action in _REFUSED or index.error is not None:
                room.count()
                continue
            json_parser.check(document, "a document is not JSON")
            messages_for(topics, index.topic, room).add(document)
        return {topic: messages.packed() for topic, messages in topics.items()}

    def _action(self, line: bytes) -> tuple[str, _Index]:
        """What an action says; most lines of a request are the same."""
        known = self._known.get(line)
        if known is None:
            action, name = _parsed(line)
            name = self._default_index if name is None else name
            if name is None:
                raise BadRequest("an action without _index")
            known = action, self._number(name)
            if len(self._known) < _MAX_KNOWN:
                self._known[line] = known
        action, number = known
        kind = _ACTIONS.index(action), number
        self._kinds[kind] = None
        self._actions.append(kind[0])
        self._names.append(number)
        return action, self._indices[number]

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            if len(self._indices) == _MAX_INDICES:
                raise BadRequest(f"one request names at most {_MAX_INDICES} indices")
            number = self._numbers[name] = len(self._indices)
            self._indices.append(_index(name))
        return number

    async def store(self, asking: AsyncService) -> LogdError | None:
        """Store what can be stored, a batch for each topic.

        The reason where nothing at all is stored, and all of it may be sent again."""
        for topic, packed in self._packed.items():
            try:
                self._outcomes[topic] = (await push(asking, topic, packed)).offset
            except LogdError as error:
                self._outcomes[topic] = error
        self._packed = {}
        errors = list(self._errors())
        if errors and all(isinstance(error, TRY_AGAIN) for error in errors):
            return errors[0]
        return None

    def _errors(self) -> Iterator[LogdError | None]:
        """What became of each combination of action and index that there is."""
        for action, number in self._kinds:
            yield self._error(action, number)

    def _error(self, action: int, number: int) -> LogdError | None:
        index = self._indices[number]
        outcome = self._outcomes.get(index.topic)
        failed = outcome if isinstance(outcome, LogdError) else None
        return _REFUSED.get(_ACTIONS[action]) or index.error or failed

    @property
    def is_short(self) -> bool:
        """Is the response a single piece?"""
        return len(self._actions) <= _AT_A_TIME

    def response(self, refusal: LogdError | None) -> Iterator[bytes]:
        """The response's JSON in pieces, a result for each document in it."""
        head: dict[str, Any] = {"took": int((time.monotonic() - self._begun_s) * 1000)}
        head["errors"] = any(error is not None for error in self._errors())
        if refusal is not None:
            head = {"error": refusal.code, "text": refusal.text} | head
        results = self._results()
        piece = f'{encode(head)[:-1]}, "items": ['
        separator = ""
        while more := list(islice(results, _AT_A_TIME)):
            yield (piece + separator + ",".join(more)).encode()
            piece, separator = "", ","
        yield f"{piece}]}}".encode()

    def _results(self) -> Iterator[str]:
        offsets = {
            topic: count(outcome)
            for topic, outcome in self._outcomes.items()
            if isinstance(outcome, int)
        }
        for action, number in zip(self._actions, self._names, strict=True):
            index, error = self._indices[number], self._error(action, number)
            start = f'{{"{_ACTIONS[action]}": {{"_index": {index.shown}, '
            if error is None:
                offset = next(offsets[index.topic])
                yield f'{start}"_id": "{offset}", "status": 201, "result": "created"}}}}'
            else:
                reason = encode({"type": error.code, "reason": error.text})
                yield f'{start}"status": {_status(error)}, "error": {reason}}}}}'


def _parsed(line: bytes) -> tuple[str, str | None]:
    """The action in a line, and the index that it names."""
    if len(line) > _MAX_ACTION_BYTES:
        raise BadRequest(f"an action of the bulk form has at most {_MAX_ACTION_BYTES} bytes")
    found = json_parser.decode(line, dict[str, _Target], _NOT_AN_ACTION)
    for action, target in found.items():
        if len(found) == 1 and action in _ACTIONS:
            return action, target.index
    raise BadRequest(_NOT_AN_ACTION)


def _index(name: str) -> _Index:
    try:
        if len(name) > _MAX_NAME:
            raise BadRequest(f"the name of an index has at most {_MAX_NAME} characters")
        return _Index(encode(name), topic_for(name), None)
    except LogdError as error:
        return _Index(encode(name[:_MAX_NAME]), "", error)


def _status(error: LogdError) -> int:
    """Senders of this form repeat a document for one status alone."""
    return 429 if isinstance(error, TRY_AGAIN) else error.status
