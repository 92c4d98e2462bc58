"""Several topics as one stream, including topics that are created later and match a glob.

What exists at the start is merged by time, or read topic by topic. A follower then uses a thread
for each topic, with a reader that reconnects; the threads pass batches through a bounded queue, so
a slow program slows them down and memory stays bounded. The order within a topic is always that of
its offsets. The asyncio API has no such class: there, a program starts a task for each topic.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Literal, NamedTuple, Self, Unpack

from logd.client.client import Client
from logd.client.reader import Reader
from logd.errors import BadRequest, LogdError, NotFound
from logd.wire.addresses import ConnectionLost, Target
from logd.wire.commands import checked_topic
from logd.wire.read_state import Batch, ReadOptions, messages_of
from logd.wire.requests import Where

MAX_TOPICS = 500  # each has a connection and, if it is followed, a thread
LOOK_S = 2.0  # how often a follower looks for new topics
_QUEUED = 64  # batches between the threads and the program
_GLOB_CHARACTERS = frozenset("*?[")


class TopicMessage(NamedTuple):
    topic: str
    offset: int
    time_ms: int
    value: bytes


class TopicsReader:
    """Reads the topics that these names and globs match. A context manager; iterate it.

    With `merge="time"`, what exists at the start is ordered by time over all topics; later messages
    are returned as they arrive. A follower also reads topics that are created later. The options
    are those of a Reader; `limit` and `until` apply to each topic. With `until_ms` a follower ends
    when that time has come and everything older is read, including topics created just before.
    """

    def __init__(
        self,
        target: Target,
        names: Sequence[str],
        *,
        merge: Literal["time", "arrival"] = "time",
        patience_s: float | None = 60.0,
        on_trouble: Callable[[Exception], None] = lambda error: None,
        **options: Unpack[ReadOptions],
    ) -> None:
        if not names:
            raise BadRequest("name at least one topic, or a glob such as '*'")
        self._target, self._names, self._merge = target, names, merge
        self._patience_s, self._on_trouble = patience_s, on_trouble
        self._follow = options.pop("follow", False)
        self._options = options
        self._readers: dict[str, Reader] = {}
        # A batch of a topic, or the error that ended its thread; None: there are no more.
        self._queue: queue.Queue[tuple[str, Batch | Exception | None]] = queue.Queue(_QUEUED)
        self._closed = threading.Event()
        self._reading = 0  # threads that have not reached an end
        self._threads: list[threading.Thread] = []
        self._client = Client(target)
        for topic in self._unknown():
            self._add(topic, options.get("start", "first"))
        self._messages = self._run()

    def __iter__(self) -> Iterator[TopicMessage]:
        return self._messages

    @property
    def topics(self) -> list[str]:
        return sorted(self._readers)

    def close(self) -> None:
        self._closed.set()
        for reader in self._readers.values():
            reader.interrupt()
        while any(thread.is_alive() for thread in self._threads):
            try:
                self._queue.get(timeout=0.05)  # a thread may be waiting for room
            except queue.Empty:
                pass
        for reader in self._readers.values():
            reader.close()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- which topics ---------------------------------------------------------------------------

    def _matching(self) -> set[str]:
        found: set[str] = set()
        for name in self._names:
            if _GLOB_CHARACTERS & set(name):
                found |= {info.topic for info in self._client.topics(name)}
            elif name in self._readers or self._is_there(checked_topic(name)):
                found.add(name)
        return found

    def _is_there(self, topic: str) -> bool:
        """A follower waits for a topic that does not exist yet; for others that is an error."""
        if not self._follow:
            return True
        try:
            self._client.stats(topic)
        except NotFound:
            return False
        return True

    def _unknown(self) -> list[str]:
        """The topics that match and are not read yet."""
        new = sorted(self._matching() - self._readers.keys())
        if len(self._readers) + len(new) > MAX_TOPICS:
            raise BadRequest(f"more than {MAX_TOPICS} topics match; read fewer at a time")
        return new

    def _add(self, topic: str, start: Where) -> None:
        options: ReadOptions = {**self._options, "start": start}
        self._readers[topic] = Reader(
            self._target, topic, patience_s=self._patience_s, on_trouble=self._on_trouble,
            **options,
        )  # fmt: skip

    # -- messages -------------------------------------------------------------------------------

    def _run(self) -> Iterator[TopicMessage]:
        if self._merge == "time":
            streams = [_labelled(topic, reader) for topic, reader in self._readers.items()]
            yield from heapq.merge(*streams, key=lambda message: message.time_ms)
        else:
            for topic, reader in self._readers.items():
                yield from _labelled(topic, reader)
        if self._follow:
            yield from self._followed()

    def _followed(self) -> Iterator[TopicMessage]:
        for topic, reader in self._readers.items():
            self._start(topic, reader)
        looked_at_s = monotonic()
        while not self._closed.is_set():
            if not self._reading and self._is_time_up() and not self._find():
                return
            if monotonic() - looked_at_s >= LOOK_S:
                self._look()
                looked_at_s = monotonic()
            try:
                topic, found = self._queue.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            if isinstance(found, Exception):
                raise found
            if found is None:
                self._reading -= 1
            else:
                yield from _labels(topic, found)

    def _is_time_up(self) -> bool:
        until_ms = self._options.get("until_ms")
        return until_ms is not None and time.time_ns() // 1_000_000 >= until_ms

    def _look(self) -> None:
        """Look for new topics; none if the server does not answer."""
        try:
            self._find()
        except (ConnectionLost, NotFound):
            self._client.close()
            try:
                self._client = Client(self._target)
            except ConnectionLost:
                pass

    def _find(self) -> list[str]:
        """Start reading the topics that were created since the last call, and return them."""
        new = self._unknown()
        for topic in new:
            self._add(topic, "first")
            self._start(topic, self._readers[topic])
        return new

    def _start(self, topic: str, reader: Reader) -> None:
        def work() -> None:
            try:
                for batch in reader.followed():
                    self._queue.put((topic, batch))
                    if self._closed.is_set():
                        return
                self._queue.put((topic, None))
            except (LogdError, ConnectionLost) as error:
                if not self._closed.is_set():
                    self._queue.put((topic, error))

        thread = threading.Thread(target=work, name=f"logd-read-{topic}", daemon=True)
        self._threads.append(thread)
        self._reading += 1
        thread.start()


def _labelled(topic: str, reader: Reader) -> Iterator[TopicMessage]:
    for batch in reader.batches():
        yield from _labels(topic, batch)


def _labels(topic: str, batch: Batch) -> Iterator[TopicMessage]:
    return (TopicMessage(topic, *message) for message in messages_of(batch))
