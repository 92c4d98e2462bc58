"""What was acknowledged must be there afterwards: in order, once, and whole.

    ledger = Ledger(random.Random(seed))
    with ledger.load(daemon):
        ledger.wait_answers(100)
        daemon.kill()
    daemon.start()
    ledger.verify(daemon)

What a READ once showed counts like an acknowledgement.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.integration.faults.reading import Broken, Log, read_all
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.integration.faults.writers import ID, Follower, Sent, Writer
from tests.support.daemon import HANG_S

_LONGEST_S = 4 * HANG_S


class Ledger:
    def __init__(self, rng: random.Random, topics: int = 2, kinds: str = "line plain sum id id"):
        self._random = rng
        self.writers: dict[str, Writer] = {}
        self.followers = [Follower("t0")]
        self.answers = 0
        self._told = threading.Condition()
        self._ended = False
        for number, kind in enumerate(kinds.split()):
            self.add_writer(f"t{number % topics}", kind)

    def add_writer(self, topic: str, kind: str) -> Writer:
        """One more from the next load on; its topic may be new."""
        name = f"w{len(self.writers)}"
        window = self._random.choice((1, 3, 8))
        rng = random.Random(self._random.random())
        self.writers[name] = Writer(name, topic, kind, rng, window)
        return self.writers[name]

    # -- pushing --------------------------------------------------------------------------------

    @contextmanager
    def load(self, daemon: TracedDaemon) -> Iterator[None]:
        """Push from all connections; at the end of the block wait for what is still in flight."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=writer.write, args=(daemon.address, stop, self._tell))
            for writer in self.writers.values()
        ]
        followers = [
            threading.Thread(target=follower.follow, args=(daemon.address, stop))
            for follower in self.followers
        ]
        for thread in threads + followers:
            thread.start()
        watcher = threading.Thread(target=self._watch, args=(threads,))
        self._ended = False
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            for thread in [*threads, *followers, watcher]:
                thread.join()

    def _tell(self) -> None:
        with self._told:
            self.answers += 1
            self._told.notify_all()

    def _watch(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join()
        with self._told:
            self._ended = True
            self._told.notify_all()

    def wait_answers(self, count: int) -> None:
        """Until so many more pushes have been answered."""
        enough = self.answers + count
        self._wait(lambda: self.answers >= enough)

    def wait_stored(self, count: int) -> None:
        """Until each writer has had so many more OKs."""
        enough = {writer: writer.stored + count for writer in self.writers.values()}
        self._wait(lambda: all(writer.stored >= due for writer, due in enough.items()))

    def wait_refusals(self, count: int) -> None:
        """Until so many more pushes have been refused."""
        writers = self.writers.values()
        enough = sum(writer.refusals for writer in writers) + count
        self._wait(lambda: sum(writer.refusals for writer in writers) >= enough)

    def wait_resent(self) -> None:
        """Until all is stored that writers with ids had no answer for when the load began."""
        writers = [writer for writer in self.writers.values() if writer.kind == ID]
        for push in [push for writer in writers for push in writer.sent if not push.is_answered]:
            self._wait(lambda push=push: push.is_answered)  # type: ignore[misc]

    def _wait(self, reached: Callable[[], bool]) -> None:
        """However slow the disk is: for as long as there are answers, within reason."""
        end_s = time.monotonic() + _LONGEST_S
        with self._told:
            while not self._ended and not reached():
                if not self._told.wait(HANG_S) or time.monotonic() > end_s:
                    break
            if not reached():
                waited = f"nothing for {HANG_S} s, or too little for {_LONGEST_S} s"
                what = "all connections are gone" if self._ended else waited
                raise Broken(f"the load did not get on: {what}")

    # -- looking --------------------------------------------------------------------------------

    def verify(
        self, daemon: TracedDaemon, promised: Callable[[Sent], bool] | None = None
    ) -> dict[str, list[Sent]]:
        """Read everything and compare.

        With `promised`, acknowledged pushes that it says no to may be missing at the end of a
        topic; those that are, are returned by topic. Writers with ids send them again, from the
        others they must not come back.
        """
        problems = [problem for writer in self.writers.values() for problem in writer.problems]
        lost: dict[str, list[Sent]] = {}
        with daemon.client() as client:
            topics = {info.topic for info in client.topics()}
            for topic in sorted({writer.topic for writer in self.writers.values()}):
                log = read_all(client, topic) if topic in topics else Log(0, [])
                if topic in topics and int(client.stats(topic)["damages"]):
                    problems.append(f"{topic} is faulted")
                lost[topic] = self._compare(topic, log, promised, problems)
        if problems:
            shown = "\n".join(problems[:20])
            raise Broken(f"{len(problems)} broken promises:\n{shown}\n{daemon.log}")
        return lost

    def mark_durable(self) -> None:
        """All that is known to be stored is on disk by now: a start or a sync has seen to it."""
        for writer in self.writers.values():
            for push in writer.sent:
                push.is_durable |= push.offset >= 0

    def _compare(
        self,
        topic: str,
        log: Log,
        promised: Callable[[Sent], bool] | None,
        problems: list[str],
    ) -> list[Sent]:
        placed = self._placed(topic, log, problems)
        lost: list[Sent] = []
        for writer in self.writers.values():
            if writer.topic == topic:
                lost += _compare_writer(writer, placed, log.next, promised, problems)
        for follower in self.followers:
            if follower.topic == topic:
                _compare_shown(follower, log, promised is not None, problems)
        for push in lost:
            push.offset, push.is_answered = -1, False
        return lost

    def _placed(self, topic: str, log: Log, problems: list[str]) -> dict[tuple[str, int], int]:
        """Where each push is: by writer and number, the offset of its first message."""
        placed: dict[tuple[str, int], int] = {}
        for offset, message in enumerate(log.messages, log.first):
            name, number, i = message.partition(b" ")[0].decode().split("/")
            writer = self.writers.get(name)
            push = writer.sent[int(number) - 1] if writer else None
            if not writer or not push or push.messages[int(i)] != message or writer.topic != topic:
                problems.append(f"{topic} {offset}: nobody sent {message[:60]!r}")
            elif int(i) == 0:
                if (name, int(number)) in placed:
                    problems.append(f"{topic} {offset}: {name}/{number} is there twice")
                placed[name, int(number)] = offset
            elif placed.get((name, int(number))) != offset - int(i):
                problems.append(f"{topic} {offset}: {name}/{number} is torn apart")
        return placed


def _compare_writer(
    writer: Writer,
    placed: dict[tuple[str, int], int],
    next_: int,
    promised: Callable[[Sent], bool] | None,
    problems: list[str],
) -> list[Sent]:
    lost = []
    last, missing_on = -1, 0
    for push in writer.sent:
        who = f"{writer.topic}: {writer.name}/{push.number}"
        offset = placed.get((writer.name, push.number), -1)
        if push.refused:
            if offset >= 0:
                problems.append(f"{who} was refused ({push.refused}), and is at {offset}")
            continue
        if push.offset >= 0 and offset < 0:
            if promised is None or promised(push):
                problems.append(f"{who} was acknowledged at {push.offset}, and is lost")
            elif push.offset < next_:
                problems.append(f"{who} is lost, but {push.offset} is below the end, {next_}")
            lost.append(push)
        elif push.offset not in (-1, offset):
            problems.append(f"{who} was acknowledged at {push.offset}, and is at {offset}")
        elif offset >= 0:
            push.offset = offset  # whoever reads it may count on it from now on
            if offset < last:
                problems.append(f"{who} is at {offset}, before the push it followed")
            if missing_on and (missing_on == push.connection or writer.kind == ID):
                problems.append(f"{who} is there, but one before it is not")
            last = offset
        if offset < 0:
            missing_on = push.connection
            if writer.kind != ID:
                push.refused = "lost"
    return lost


def _compare_shown(follower: Follower, log: Log, may_be_lost: bool, problems: list[str]) -> None:
    """What a READ has shown is still what it was, or gone together with all behind it."""
    for offset, message in list(follower.shown.items()):
        if offset >= log.next and may_be_lost:
            del follower.shown[offset]
        elif offset >= log.next or log.messages[offset - log.first] != message:
            problems.append(f"{follower.topic} {offset}: was read once, and is not there any more")
