"""A topic without an event loop: everything it asks for happens when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logd.batch import body_sum, compress, encode_body
from logd.config import Config
from logd.errors import LogdError
from logd.storage.delete_hooks import RunningHooks
from logd.storage.write_group import CheckedBatch
from logd.topic import Topic

START_MS = 1_700_000_000_000

Done = Callable[[Any, BaseException | None], None]


class Timer:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s, self.call, self.is_cancelled = at_s, call, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """The scheduler of a topic. Nothing runs before `run`, and time stands still."""

    def __init__(self) -> None:
        self.time_s = 1000.0
        self.fatalities: list[str] = []
        self.hooks: list[tuple[Callable[[], Any], Done]] = []
        self._due: deque[Callable[[], None]] = deque()
        self._timers: list[Timer] = []

    def soon(self, call: Callable[[], None]) -> None:
        self._due.append(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self.time_s + delay_s, call)
        self._timers.append(timer)
        return timer

    def offload(self, work: Callable[[], Any], done: Done) -> None:
        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  as a thread pool hands it on
                done(None, error)
            else:
                done(result, None)

        self._due.append(run)

    def offload_cpu(self, work: Callable[[], Any], done: Done) -> None:
        self.offload(work, done)

    def offload_hook(self, work: Callable[[], Any], done: Done) -> None:
        """Kept in `hooks`: the test says when it ends, and how."""
        self.hooks.append((work, done))

    def now_ms(self) -> int:
        return START_MS + int((self.time_s - 1000) * 1000)

    def monotonic_s(self) -> float:
        return self.time_s

    def fatal(self, reason: str) -> None:
        self.fatalities.append(reason)

    def run(self, most: int = 10_000) -> None:
        """Until there is nothing left to do; fails if that never comes."""
        for _ in range(most):
            if not self._due:
                return
            self.step()
        raise AssertionError("it never comes to rest")

    def step(self) -> None:
        self._due.popleft()()

    def pass_time(self, seconds: float) -> None:
        self.time_s += seconds
        due = [timer for timer in self._timers if timer.at_s <= self.time_s]
        self._timers = [timer for timer in self._timers if timer.at_s > self.time_s]
        for timer in due:
            if not timer.is_cancelled:
                timer.call()
        self.run()


class Pushing:
    """A push, and what came of it."""

    clients = 1

    def __init__(self, batch: CheckedBatch) -> None:
        self.content: Any = batch
        self.offset = -1
        self.messages = 0
        self.is_stored = False
        self.error: LogdError | None = None

    def stored(self) -> None:
        self.is_stored = True

    def refused(self, error: LogdError) -> None:
        self.error = error


def new_topic(directory: Path, loop: Loop, **settings: Any) -> Topic:
    return Topic(directory.name, directory, Config(**settings), loop, RunningHooks())


def create(directory: Path, loop: Loop, **settings: Any) -> Topic:
    topic = new_topic(directory, loop, **settings)
    topic.create(failed=lambda: None)
    loop.run()
    assert topic.ready
    return topic


def push(topic: Topic, loop: Loop, batch: CheckedBatch) -> Pushing:
    pushing = Pushing(batch)
    topic.push(pushing)
    loop.run()
    return pushing


def close(topic: Topic, loop: Loop) -> None:
    closed: list[bool] = []
    topic.close(lambda: closed.append(True))
    loop.run()
    assert closed


def batch_of(messages: list[bytes], *, zstd: bool = False, id_: str = "-") -> CheckedBatch:
    body, enc = encode_body(messages)
    if zstd:
        body, enc = compress(body, enc)
    return CheckedBatch(body, enc, len(messages), body_sum(body), id_)


def one_file(directory: Path, sizes: list[int]) -> tuple[Path, list[bytes]]:
    """A topic of one partition, properly stopped: its directory and its messages."""
    loop = Loop()
    topic = create(directory, loop)
    messages = [b"%02d" % (i % 100) * size for i, size in enumerate(sizes)]
    for message in messages:
        push(topic, loop, batch_of([message]))
    close(topic, loop)
    return directory, messages
