"""A topic that writes while somebody looks: each change of a file comes at a moment of our choice.

The topic is a real one, on a thread of its own that stops before each call that changes a file.
Whoever looks is on the test's thread, and each of its calls that asks for a file is a moment: the
schedule says how many changes happen before it.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logd.errors import LogdError
from logd.storage.checkpoint import Checkpoint
from logd.storage.topic_files import CHECKPOINT
from tests.support.topic_loop import Loop, Pushing, batch_of, close, create, new_topic

Schedule = list[tuple[int, int]]  # after so many more looks, so many changes
LOOKS = ["open", "pread", "preadv", "fstat", "lstat", "stat", "listdir", "scandir"]
CHANGES = ["open", "pwritev", "pwrite", "ftruncate", "unlink", "rename", "mkdir"]
FAILS = ["open", "pwritev", "pwrite"]
SETTINGS: dict[str, Any] = {"partition_bytes": 400, "max_partitions": 2}
TORN_BYTES = 40  # that a failed write leaves: less than a header
_GO_ON_S = 60.0


class Killed(BaseException):
    """Nothing on the way catches it, as nothing catches a kill."""


class World:
    def __init__(self, data: Path) -> None:
        self.data, self.directory = data, data / "topics" / "app"
        self.directory.parent.mkdir()
        self.acked: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        self.committed = 0
        self.life = 0  # how often the topic was made anew
        self.torn_bytes = TORN_BYTES
        self._count = 0
        self._fail_in = self._kill_in = 0  # changes
        self._thread: int | None = None  # of a script under way
        self._permit, self._rest = threading.Semaphore(0), threading.Semaphore(0)
        self._ended, self._error = True, list[BaseException]()
        self.loop = Loop()
        self.topic = create(self.directory, self.loop, **SETTINGS)

    # -- what happens ---------------------------------------------------------------------------

    def step(self, name: str) -> None:
        steps: dict[str, Callable[[], object]] = {
            "single": lambda: self._push([1]),
            "batch": lambda: self._push([3]),
            "group": lambda: self._push([1, 2, 1]),
            "large": lambda: self._push([1], pad=400),
            "expire": self._expire,
            "time": lambda: self.loop.pass_time(2.0),
            "commit": self._commit,
            "stop": self._stop,
            "kill": self._kill,
            "fail": lambda: setattr(self, "_fail_in", 1),
            "fail later": lambda: setattr(self, "_fail_in", 4),
            "fail a roll": lambda: setattr(self, "_fail_in", 5),
            "killed": lambda: setattr(self, "_kill_in", 1),
            "killed later": lambda: setattr(self, "_kill_in", 4),
            "anew": self._make_anew,
        }
        try:
            steps[name]()
        except Killed:
            self._kill()

    @property
    def first(self) -> int:
        """As its checkpoint has it: what a kill brings back has not expired."""
        state = Checkpoint(self.topic.directory / CHECKPOINT).state
        assert state is not None
        return state.first

    @property
    def next(self) -> int:
        return self.topic.readable.next

    def _push(self, sizes: list[int], pad: int = 20) -> None:
        pushes = []
        known = self.topic.producers._known.get("p")
        for number, size in enumerate(sizes, known.last + 1 if known else 0):
            messages = [self._message(pad) for _ in range(size)]
            pushes.append((messages, Pushing(batch_of(messages, id_=f"p:{number}"))))
        for _, push in pushes:
            self.topic.push(push)
        self.loop.run()
        for messages, push in pushes:
            assert push.is_stored or push.error
            if push.is_stored:
                self.acked |= dict(enumerate(messages, push.offset))
            else:
                self.refused |= set(messages)

    def _message(self, pad: int) -> bytes:
        self._count += 1
        return b"%d %06d " % (self.life, self._count) + b"x" * pad

    def _expire(self) -> None:
        self.topic.check_retention()
        self.loop.run()

    def _commit(self) -> None:
        answers: list[LogdError | None] = []
        offset = self.next
        self.topic.cursors.commit("reader", offset, answers.append)
        self.loop.run()
        assert answers
        if answers == [None]:
            self.committed = offset

    def _stop(self) -> None:
        self._fail_in = 0
        close(self.topic, self.loop)
        self._start()

    def _kill(self) -> None:
        self._fail_in = self._kill_in = 0
        self._start()

    def _start(self) -> None:
        time_s, self.loop = self.loop.time_s, Loop()
        self.loop.time_s = time_s
        self.topic = new_topic(self.directory, self.loop, **SETTINGS)
        opened = self.topic.open()
        assert not opened.damages

    def _make_anew(self) -> None:
        self._fail_in = self._kill_in = 0
        close(self.topic, self.loop)
        self.life += 1
        os.rename(self.directory, self.directory.with_name(f".new-gone-{self.life}"))
        self.acked, self.committed = {}, 0
        self.loop = Loop()
        self.topic = create(self.directory, self.loop, **SETTINGS)

    # -- when it happens ------------------------------------------------------------------------

    def run(self, script: list[str]) -> None:
        """Now, with nobody looking."""
        with self.goes_on(script, []):
            pass

    @contextmanager
    def goes_on(self, script: list[str], schedule: Schedule) -> Iterator[None]:
        """While the test looks: the script, as far as the schedule says; then the rest of it."""
        self._begin(script)
        left, looks = deque(schedule), 0

        def look() -> None:
            nonlocal looks
            looks += 1
            while left and looks > left[0][0]:
                looks = 0
                for _ in range(left.popleft()[1]):
                    self._go_on()

        with pytest.MonkeyPatch.context() as patch:
            for name in {*LOOKS, *CHANGES}:
                patch.setattr(os, name, self._wrapped(name, getattr(os, name), look))
            patch.setattr(io, "open", self._wrapped("io", io.open, look))
            try:
                yield
            finally:
                self.go_on_to_the_end()
        if self._error:
            raise self._error.pop()

    def go_on_to_the_end(self) -> None:
        """Of the script, whatever the schedule says."""
        while not self._ended:
            self._go_on()

    def _begin(self, script: list[str]) -> None:
        def run() -> None:
            try:
                self._thread = threading.get_ident()
                self._permit.acquire(timeout=_GO_ON_S)
                for name in script:
                    self.step(name)
            except BaseException as error:  # noqa: BLE001  for the test's thread
                self._error.append(error)
            finally:
                self._ended, self._thread = True, None
                self._rest.release()

        self._ended = False
        threading.Thread(target=run, daemon=True).start()

    def _go_on(self) -> None:
        """Up to the next change."""
        if not self._ended:
            self._permit.release()
            assert self._rest.acquire(timeout=_GO_ON_S)

    def _pause(self) -> None:
        self._rest.release()
        assert self._permit.acquire(timeout=_GO_ON_S)

    def _wrapped(
        self, name: str, real: Callable[..., Any], look: Callable[[], None]
    ) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if threading.get_ident() == self._thread:
                return self._change(name, real, *args, **options)
            if name not in CHANGES[1:] and (isinstance(args[0], int) or self._is_ours(args[0])):
                look()
            return real(*args, **options)

        return call

    def _is_ours(self, path: object) -> bool:
        """No file of Python's own."""
        return str(path).startswith(str(self.directory))

    def _change(self, name: str, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if name not in CHANGES or (name == "open" and not args[1] & os.O_CREAT):
            return real(*args, **options)
        self._pause()
        fails, killed = self._is_due("_fail_in", name in FAILS), self._is_due("_kill_in")
        if name == "pwritev":  # the kernel shows a part of a write before the rest
            file, data, position = args[0], b"".join(args[1]), args[2]
            half = self.torn_bytes if fails else len(data) // 2
            real(file, [data[:half]], position)
            self._pause()
        if fails:
            raise OSError(errno.ENOSPC, "no room")
        if killed:
            raise Killed
        if name == "pwritev":
            return half + real(file, [data[half:]], position + half)
        return real(*args, **options)

    def _is_due(self, countdown: str, counts: bool = True) -> bool:
        left = getattr(self, countdown)
        setattr(self, countdown, left - 1 if left and counts else left)
        return left == 1 and counts
