"""A short fixed load, to be interrupted anywhere and done again until it is complete.

Two topics, two rolls, a clean stop. Every push has an id, so doing it again stores what is missing
and nothing twice; in the end the topics hold exactly TOPICS, whatever happened on the way.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from logd.batch import body_sum
from logd.errors import LogdError
from logd.wire.addresses import ConnectionLost
from logd.wire.commands import Pushed
from logd.wire.requests import Push
from tests.integration.faults.reading import Broken, read_all
from tests.integration.faults.traced_daemon import TracedDaemon

SETTINGS = {"partition_bytes": 300}  # a roll after two pushes
_ORDER = ("app", "app", "other", "app", "app", "app")
_PUSHES = [(topic, f"{n} in {topic}".encode().ljust(100, b".")) for n, topic in enumerate(_ORDER)]
TOPICS = {topic: [message for other, message in _PUSHES if other == topic] for topic in set(_ORDER)}
_ENOUGH_FAILURES = 8
T = TypeVar("T")
R = TypeVar("R")


class Script:
    def __init__(self) -> None:
        self.acknowledged: dict[tuple[str, int], Pushed] = {}
        self.refused: list[str] = []  # with what code

    def run(self, daemon: TracedDaemon) -> bool:
        """Push until all is acknowledged, or the daemon is gone: was it all?"""
        numbers = dict.fromkeys(TOPICS, 0)
        try:
            with daemon.client() as client:
                for topic, message in _PUSHES:
                    numbers[topic] += 1
                    body = message + b"\n"
                    id_ = f"script:{numbers[topic]}"
                    push = Push(topic, body, sum=body_sum(body), id=id_)
                    self._acknowledge(topic, numbers[topic], client.push_batch(push))
        except ConnectionLost:
            return False
        except LogdError as error:
            self.refused.append(error.code)
            return False
        return True

    def _acknowledge(self, topic: str, number: int, pushed: Pushed) -> None:
        if pushed != (number - 1, 1):
            raise Broken(f"{topic}: push {number} was answered with {pushed}")
        self.acknowledged[topic, number] = pushed

    def check(self, daemon: TracedDaemon) -> None:
        """All that was acknowledged is there, and what is there is a beginning of the whole."""
        with daemon.client() as client:
            there = {info.topic for info in client.topics()}
            logs = {topic: read_all(client, topic).messages for topic in there}
            faulted = int(client.stats()["faulted_topics"])
        for topic, wanted in TOPICS.items():
            got = logs.get(topic, [])
            due = max((n for other, n in self.acknowledged if other == topic), default=0)
            if got != wanted[: len(got)] or len(got) < due or faulted:
                raise Broken(f"{topic}: {due} acknowledged, {got} found\n{daemon.log}")

    def complete(self, daemon: TracedDaemon) -> None:
        """Start, look, do the rest, stop; then all is there and the stop was clean."""
        daemon.start()
        self.check(daemon)
        if not self.run(daemon):
            raise Broken(f"could not go on: {self.refused}\n{daemon.log}")
        if daemon.stop() != 0:
            raise Broken(f"could not stop\n{daemon.log}")
        daemon.start()
        self.check(daemon)
        if daemon.has_recovered:
            raise Broken(f"the stop was not clean\n{daemon.log}")
        daemon.stop()


def run_and_stop(daemon: TracedDaemon, script: Script) -> int:
    """The whole script and a clean stop, as far as it gets; the exit code."""
    try:
        daemon.wait_ready()
    except AssertionError:
        return daemon.wait_ended()
    if script.run(daemon) or daemon.is_running:
        daemon.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
    return daemon.wait_ended()


def side_by_side(work: Callable[[T], R], items: list[T], threads: int = 3) -> list[R]:
    """Each item's result; where some fail, all of these are named, up to a handful."""
    failures: list[str] = []

    def attempt(item: T) -> R | None:
        if len(failures) >= _ENOUGH_FAILURES:
            return None
        try:
            return work(item)
        except Exception as error:  # noqa: BLE001  told below, with all others
            failures.append(f"{item}: {type(error).__name__}: {error}")
            return None

    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(attempt, items))
    if failures:
        raise Broken("\n\n".join(failures))
    return cast("list[R]", results)
