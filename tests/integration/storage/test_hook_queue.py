"""Which partition's hook runs next, and when: no processes, and a clock that the test moves."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from logd import partition
from logd.topic import Topic
from tests.support.topic_loop import Loop, batch_of, close, create, new_topic, push

HOOK = ("/no/such/hook",)  # never run: the loop only keeps what it is asked to run


def topic_of(directory: Path, loop: Loop, count: int, **settings: object) -> Topic:
    """One message per partition, of which only the newest may stay."""
    topic = create(
        directory, loop, partition_bytes=1, max_partitions=1, delete_hook=HOOK, **settings
    )
    for _ in range(count):
        push(topic, loop, batch_of([b"message"]))
    return topic


def look(topic: Topic, loop: Loop) -> None:
    topic.check_retention()
    loop.run()


def end(topic: Topic, loop: Loop, *, succeeds: bool) -> None:
    """The hook under way ends."""
    _, done = loop.hooks.pop(0)
    done(succeeds, None)
    loop.run()


def shown(topic: Topic) -> tuple[str, int, int]:
    stats = topic.stats()
    return stats["hook_running"], stats["expired_waiting"], stats["hook_failures"]


def name(first: int) -> str:
    return f"{first:020d}.log"


def test_one_at_a_time_oldest_first_until_all_are_done(tmp_path: Path) -> None:
    loop = Loop()
    topic = topic_of(tmp_path / "app", loop, 4)
    assert shown(topic) == ("-", 0, 0)
    look(topic, loop)
    for first in range(3):
        assert len(loop.hooks) == 1
        assert shown(topic) == (name(first), 2 - first, 0)
        assert topic.readable.first == first  # readable for as long as its hook runs
        assert (topic.directory / name(first)).exists()
        look(topic, loop)
        assert len(loop.hooks) == 1
        end(topic, loop, succeeds=True)
        assert topic.readable.first == first + 1
        assert not (topic.directory / name(first)).exists()
    assert loop.hooks == []
    assert shown(topic) == ("-", 0, 0)


def test_a_failure_keeps_the_partition_and_waits_longer_each_time(tmp_path: Path) -> None:
    loop = Loop()
    topic = topic_of(tmp_path / "app", loop, 3)
    look(topic, loop)
    for failures, pause_s in enumerate((1, 2, 4, 8, 16), 1):
        end(topic, loop, succeeds=False)
        assert topic.readable.first == 0
        assert shown(topic) == ("-", 2, failures)
        loop.time_s += pause_s - 0.01
        look(topic, loop)
        assert loop.hooks == [], f"too early after failure {failures}"
        loop.time_s += 0.02
        look(topic, loop)
        assert len(loop.hooks) == 1
    end(topic, loop, succeeds=True)
    assert len(loop.hooks) == 1  # the next one's, at once
    assert shown(topic) == (name(1), 0, 0)


def test_the_pause_begins_when_the_hook_has_ended(tmp_path: Path) -> None:
    """One that fails after a minute is not run again at once."""
    loop = Loop()
    topic = topic_of(tmp_path / "app", loop, 3)
    look(topic, loop)
    loop.time_s += 60
    end(topic, loop, succeeds=False)
    look(topic, loop)
    assert loop.hooks == []
    loop.time_s += 1.01
    look(topic, loop)
    assert len(loop.hooks) == 1


def test_a_hook_that_breaks_down_inside_the_daemon_is_a_failure(tmp_path: Path) -> None:
    loop = Loop()
    topic = topic_of(tmp_path / "app", loop, 3)
    look(topic, loop)
    _, done = loop.hooks.pop()
    done(None, MemoryError())
    loop.run()
    assert topic.readable.first == 0
    assert shown(topic) == ("-", 2, 1)


def test_a_partition_that_cannot_be_looked_at_is_tried_again_and_holds_up_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no descriptors left to read its index with."""
    loop = Loop()
    topic = topic_of(tmp_path / "app", loop, 3)

    def refuse(path: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(partition, "File", refuse)
        with pytest.raises(OSError, match="Too many open files"):  # the housekeeping reports it
            look(topic, loop)
    assert shown(topic) == ("-", 2, 0)
    look(topic, loop)
    assert shown(topic) == (name(0), 1, 0)
    with monkeypatch.context() as patch:
        patch.setattr(partition, "File", refuse)
        end(topic, loop, succeeds=True)
    close(topic, loop)


def test_pushes_and_rolls_go_on_while_a_hook_runs(tmp_path: Path) -> None:
    loop = Loop()
    topic = topic_of(tmp_path / "app", loop, 2)
    look(topic, loop)
    for offset in range(2, 6):
        assert push(topic, loop, batch_of([b"more"])).offset == offset
    end(topic, loop, succeeds=True)
    assert shown(topic) == (name(1), 3, 0)


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_stop_waits_for_the_hook_under_way_and_starts_no_other(
    tmp_path: Path, succeeds: bool
) -> None:
    loop, closed = Loop(), []
    topic = topic_of(tmp_path / "app", loop, 4)
    look(topic, loop)
    topic.close(lambda: closed.append(True))
    loop.run()
    assert not closed
    end(topic, loop, succeeds=succeeds)
    assert closed
    assert loop.hooks == []
    assert (topic.directory / name(0)).exists() is not succeeds


def test_a_start_finds_what_is_still_due(tmp_path: Path) -> None:
    loop = Loop()
    topic = topic_of(tmp_path / "app", loop, 3)
    look(topic, loop)
    loop.hooks.clear()  # the daemon is killed
    again = create_again(topic, loop)
    look(again, loop)
    assert len(loop.hooks) == 1
    end(again, loop, succeeds=True)
    assert again.readable.first == 1


def create_again(topic: Topic, loop: Loop) -> Topic:
    again = new_topic(topic.directory, loop, partition_bytes=1, max_partitions=1, delete_hook=HOOK)
    again.open()
    return again


def test_a_partition_no_longer_due_is_left_alone(tmp_path: Path) -> None:
    """The configuration was changed while the daemon was down."""
    loop = Loop()
    topic = topic_of(tmp_path / "app", loop, 3)
    look(topic, loop)
    end(topic, loop, succeeds=False)
    close(topic, loop)
    again = new_topic(topic.directory, loop, max_partitions=3, delete_hook=HOOK)
    again.open()
    loop.time_s += 1000
    look(again, loop)
    assert loop.hooks == []
