"""A reader that is killed after any message, and one whose daemon is restarted under it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logd import Client, Reader
from logd.client import client_commands, read_loop
from logd.errors import BadRequest
from logd.wire.read_state import Gap, Rewind
from logd.wire.topic_identity import TopicIdentity
from tests.support.daemon import HANG_S, Daemon, lasting_address, running

SIZES = [1, 3, 1, 2, 5, 1]  # messages of each batch
MESSAGES = sum(SIZES)

# Says each offset when it has done its work, and only then that it is done.
CHILD = """
import sys
from pathlib import Path
from logd import Reader
address, kind, cursor = sys.argv[1:]
cursor = Path(cursor) if kind == "file" else cursor
with Reader(address, "app", cursor=cursor) as reader:
    for message in reader:
        print(f"{message.offset} {message.value.decode()}", flush=True)
        reader.commit(message.offset + 1)
"""


def fill(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        at = 0
        for size in SIZES:
            client.push("app", [b"%d" % n for n in range(at, at + size)])
            at += size


def life(daemon: Daemon, kind: str, cursor: str, kill_after: int) -> list[int]:
    """The offsets that a reader handed out before it was killed, or came to the end."""
    command = [sys.executable, "-c", CHILD, daemon.address, kind, cursor]
    got: list[int] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if not line.endswith("\n"):
                break  # killed within the line
            offset, value = line.split()
            assert offset == value
            got.append(int(offset))
            if len(got) == kill_after:
                child.send_signal(signal.SIGKILL)
    return got


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "name"])
def test_killed_after_each_message_it_leaves_none_out(tmp_path: Path, kind: str) -> None:
    with running(tmp_path) as daemon:
        fill(daemon)
        for kill_after in range(1, MESSAGES + 1):
            name = f"reader-{kill_after}"
            cursor = str(tmp_path / name) if kind == "file" else name
            first = life(daemon, kind, cursor, kill_after)
            second = life(daemon, kind, cursor, MESSAGES + 1)
            assert first == list(range(len(first)))
            assert second == list(range(MESSAGES - len(second), MESSAGES))
            again = len(first) + len(second) - MESSAGES
            assert 0 <= again <= 1, "what was not committed comes again, and nothing else"


def test_many_lives_of_one_message_each(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        fill(daemon)
        got: list[int] = []
        while not got or got[-1] < MESSAGES - 1:
            with Reader(daemon.address, "app", cursor=tmp_path / "cursor", limit=2) as reader:
                for message in reader:
                    got.append(message.offset)
                    break  # in the middle of a batch, and not said to be done
            if len(got) % 2 == 0:
                with Reader(daemon.address, "app", cursor=tmp_path / "cursor") as reader:
                    reader.commit(got[-1] + 1)
        assert sorted(set(got)) == list(range(MESSAGES))
        assert len(got) <= 2 * MESSAGES


Push = Callable[[int, int], None]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path, "--host", lasting_address(), fsync="never") as started:
        yield started


def push(daemon: Daemon, first: int, next_: int) -> None:
    with Client(daemon.address) as client:
        for n in range(first, next_):
            client.push("app", [b"%d" % n])


def test_a_follower_lives_through_restarts(daemon: Daemon) -> None:
    push(daemon, 0, 3)
    troubles: list[Exception] = []
    with Reader(daemon.address, "app", follow=True, on_trouble=troubles.append) as reader:
        messages = iter(reader)
        for end in range(3, 12, 3):
            assert [next(messages).offset for _ in range(3)] == list(range(end - 3, end))
            waiting = threading.Thread(target=daemon.kill if end == 6 else daemon.stop)
            waiting.start()
            waiting.join()
            daemon.start()
            push(daemon, end, end + 3)
        assert [int(next(messages).value) for _ in range(3)] == [9, 10, 11]
    assert any("it ended the stream" in str(trouble) for trouble in troubles)


def lose(daemon: Daemon, batches: int) -> None:
    """What a power cut does to a topic that was never synced: its newest batches are gone."""
    daemon.kill()
    (log,) = daemon.log_files("app")
    data = log.read_bytes()
    for _ in range(batches):
        data = data[: data.rindex(b"BATCH ")]
    log.write_bytes(data)
    daemon.start()


def test_a_follower_notices_that_what_it_read_is_gone(daemon: Daemon) -> None:
    push(daemon, 0, 5)
    told: list[Gap | Rewind] = []
    with Reader(daemon.address, "app", follow=True, on_gap=told.append) as reader:
        messages = iter(reader)
        assert [next(messages).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        lose(daemon, 2)
        push(daemon, 100, 103)
        assert [next(messages)[::2] for _ in range(3)] == [(3, b"100"), (4, b"101"), (5, b"102")]
    assert told == [Rewind(3, 2)]


def test_a_cursor_file_notices_it_too(daemon: Daemon, tmp_path: Path) -> None:
    push(daemon, 0, 5)
    told: list[Gap | Rewind] = []
    options = {"cursor": tmp_path / "cursor", "on_gap": told.append}
    with Reader(daemon.address, "app", **options) as reader:  # type: ignore[arg-type]
        assert len(list(reader)) == 5
    lose(daemon, 2)
    push(daemon, 100, 103)
    with Reader(daemon.address, "app", **options) as reader:  # type: ignore[arg-type]
        assert [message.value for message in reader] == [b"100", b"101", b"102"]
    assert told == [Rewind(3, 2)]


def test_a_cursor_of_a_topic_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    cursor = tmp_path / "cursor"
    for name in ("one", "two"):
        with running(tmp_path / name) as daemon:
            push(daemon, 0, 3)
            if name == "one":
                with Reader(daemon.address, "app", cursor=cursor) as reader:
                    assert len(list(reader)) == 3
            else:
                with pytest.raises(BadRequest, match="created again"):
                    Reader(daemon.address, "app", cursor=cursor)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"topic": "app"}', '{"offset": 1}', "\0"])
def test_a_file_that_is_no_cursor_is_not_written_over(
    daemon: Daemon, tmp_path: Path, content: str
) -> None:
    push(daemon, 0, 1)
    (tmp_path / "cursor").write_text(content)
    with pytest.raises(BadRequest, match="not a cursor file; use another"):
        Reader(daemon.address, "app", cursor=tmp_path / "cursor")
    assert (tmp_path / "cursor").read_text() == content


def test_a_reader_gives_up_when_nobody_answers(daemon: Daemon) -> None:
    push(daemon, 0, 1)
    reader = Reader(daemon.address, "app", follow=True, patience_s=0.2)
    messages = iter(reader)
    assert next(messages).offset == 0
    daemon.kill()
    with pytest.raises(ConnectionError, match=r"no logd answers|lost the connection"):
        next(messages)
    reader.close()


def test_it_can_be_interrupted_while_it_waits(daemon: Daemon) -> None:
    push(daemon, 0, 1)
    with Reader(daemon.address, "app", follow=True) as reader:
        messages = iter(reader)
        next(messages)
        ended = threading.Event()

        def wait() -> None:
            with pytest.raises(ConnectionError):
                next(messages)
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        reader.interrupt()
        assert ended.wait(HANG_S)
        thread.join()


def test_it_can_be_interrupted_while_it_connects(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(daemon, 0, 1)
    with Reader(daemon.address, "app", follow=True) as reader:
        messages = iter(reader)
        next(messages)
        found = client_commands.find_identity

        def interrupt(client: Client, topic: str) -> TopicIdentity | None:
            reader.interrupt()
            return found(client, topic)

        monkeypatch.setattr(read_loop, "find_identity", interrupt)
        daemon.kill()
        daemon.start()
        with pytest.raises(ConnectionError, match="interrupted"):
            next(messages)
