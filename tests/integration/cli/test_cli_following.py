"""Following: nothing is held back, and it ends when nobody reads, or when its time is up."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from logd import Client
from tests.support.daemon import HANG_S, ROOT, Daemon, lasting_address, running, wait_until
from tests.support.log_cli import LOG_CLI, environment, fill, log_cli, started


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    assert process.stderr is not None
    return process.wait(HANG_S), process.stderr.read()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def later_ms(client: Client, topic: str) -> int:
    """A moment that has come, later than all that is in the topic."""
    newest_ms = client.partitions(topic)[-1].max_time_ms
    while now_ms() <= newest_ms:
        pass
    return newest_ms + 1


@pytest.mark.parametrize("words", [["read", "-f"], ["tail", "-f"], ["read", "-f", "-o", "json"]])
def test_it_ends_when_the_reader_of_its_output_goes_though_no_message_comes(
    daemon: Daemon, words: list[str]
) -> None:
    fill(daemon, 1)
    with started(daemon, *words, "-q", "app") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert ended(process) == (0, b"")


def test_head_ends_it(daemon: Daemon) -> None:
    fill(daemon, 3)
    command = " ".join([*LOG_CLI, "read", "--forever", "-q", "app", "|", "head", "-3"])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=ROOT,
        env=environment(daemon),
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"m0\nm1\nm2\n", b"")


@pytest.mark.parametrize(
    ("form", "line"),
    [
        (["-o", "text"], b"late\n"),
        (["-o", "raw"], b"late"),
        (["--format", "{message}!"], b"late!\n"),
    ],
)
def test_a_message_arrives_at_the_pipe_while_it_follows(
    daemon: Daemon, form: list[str], line: bytes
) -> None:
    fill(daemon, 1)
    words = ["read", "-fq", "app", "--offset", "next", *form]
    with Client(daemon.address) as client, started(daemon, *words) as process:
        assert process.stdout is not None
        wait_until(lambda: client.stats("app")["followers"] == "1")
        client.push("app", [b"late"])
        assert select.select([process.stdout], [], [], HANG_S)[0]
        assert os.read(process.stdout.fileno(), 100) == line
        assert process.poll() is None


def test_until_a_time_with_no_message_after_it(daemon: Daemon) -> None:
    fill(daemon, 2)
    soon_ms = now_ms() + 1500
    code, out, _ = log_cli(daemon, "read", "-f", "app", "--until", f"@{soon_ms}")
    assert (code, out) == (0, b"m0\nm1\n")
    assert now_ms() >= soon_ms


def test_until_a_time_that_is_over(daemon: Daemon) -> None:
    """All before it, however many replies that takes, and nothing of later."""
    long = [b"%06d" % n + b"." * 1000 for n in range(5000)]
    with Client(daemon.address) as client:
        for n in range(0, len(long), 100):
            client.push("app", long[n : n + 100])
        until_ms = later_ms(client, "app")
        client.push("app", [b"late"])
    expected = b"".join(message + b"\n" for message in long)
    words = ["read", "-q", "app", "--until", f"@{until_ms}"]
    assert log_cli(daemon, *words) == (0, expected, "")
    assert log_cli(daemon, *words, "-f") == (0, expected, "")
    words += ["-f", "--limit", "3"]
    assert log_cli(daemon, *words) == (0, expected[: 3 * 1007], "")


def test_until_a_time_that_comes_while_much_is_unread(daemon: Daemon) -> None:
    messages = [b"%06d" % n + b"." * 1000 for n in range(5000)]
    with Client(daemon.address) as client:
        for n in range(0, len(messages), 100):
            client.push("app", messages[n : n + 100])
    soon_ms = now_ms() + 1500
    with started(daemon, "read", "-fq", "app", "--until", f"@{soon_ms}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == messages[0] + b"\n"
        while now_ms() < soon_ms:
            assert process.poll() is None  # nobody takes the rest
        assert process.stdout.read().split(b"\n") == [*messages[1:], b""]
        assert ended(process) == (0, b"")


@pytest.mark.parametrize("merge", ["time", "arrival"])
@pytest.mark.parametrize("follow", [[], ["-f"]])
def test_until_a_time_of_several_topics(daemon: Daemon, follow: list[str], merge: str) -> None:
    with Client(daemon.address) as client:
        client.push("web-1", [b"a", b"b"])
        later_ms(client, "web-1")
        client.push("web-2", [b"c"])
        until_ms = later_ms(client, "web-2")
        for topic in ("web-1", "web-2"):
            client.push(topic, [b"late", b"later"])
    words = ["read", "-q", "web-*", "--merge", merge, "--until", f"@{until_ms}", *follow]
    assert log_cli(daemon, *words) == (0, b"web-1: a\nweb-1: b\nweb-2: c\n", "")
    assert log_cli(daemon, *words, "--limit", "3")[1] == b"web-1: a\nweb-1: b\nweb-2: c\n"
    assert log_cli(daemon, *words, "--limit", "1")[1] == b"web-1: a\n"


def test_until_a_time_of_topics_that_are_made_meanwhile(daemon: Daemon) -> None:
    """The last of them just before that time, when nobody has looked for topics since."""
    with Client(daemon.address) as client:
        client.push("web-1", [b"first"])
        soon_ms = now_ms() + 2500
        words = ["read", "-fq", "web-*", "--until", f"@{soon_ms}", "-o", "raw"]
        with started(daemon, *words) as process:
            made = 1
            while now_ms() < soon_ms:
                made += 1
                client.push(f"web-{made}", [b"+"])
                client.read("web-1", "next", 1, wait_ms=30)  # a reader takes 500 topics, no more
            assert process.stdout is not None
            times_ms = [client.partitions(f"web-{n}")[0].max_time_ms for n in range(2, made + 1)]
            in_time = sum(time_ms < soon_ms for time_ms in times_ms)
            assert process.stdout.read() == b"first" + b"+" * in_time
            assert ended(process) == (0, b"")


def test_until_an_offset_or_an_older_time(daemon: Daemon) -> None:
    fill(daemon, 3)
    assert log_cli(daemon, "read", "-fq", "app", "--until", "2") == (0, b"m0\nm1\n", "")
    assert log_cli(daemon, "read", "-fq", "app", "--until", "1h") == (0, b"", "")
    assert log_cli(daemon, "read", "app", "--until", "1h") == (0, b"", "")
    assert log_cli(daemon, "read", "app", "--until", "2")[1] == b"m0\nm1\n"


@pytest.mark.parametrize("words", [["read", "-f"], ["tail", "-f"]])
def test_ctrl_c_is_130(daemon: Daemon, words: list[str]) -> None:
    fill(daemon, 1)
    with started(daemon, *words, "app") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"m0\n"
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, b"log-cli: following app; press Ctrl-C to stop\n")


def test_a_full_disk_behind_stdout_is_an_error(daemon: Daemon) -> None:
    fill(daemon)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*LOG_CLI, "read", "app"],
            cwd=ROOT,
            env=environment(daemon),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=HANG_S,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.decode().startswith("log-cli: ")
    assert done.stderr.count(b"\n") == 1


def test_a_closed_stdout_is_an_error(daemon: Daemon) -> None:
    fill(daemon)
    command = " ".join([*LOG_CLI, "read", "app", ">&-"])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=environment(daemon),
        stderr=subprocess.PIPE,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 1
    assert b"standard output is closed" in done.stderr


# -- topics that do not exist (yet) ---------------------------------------------------------------


def said(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().decode()


@pytest.mark.parametrize(
    "words",
    [["read"], ["read", "--offset", "next"], ["read", "--tail", "1"], ["tail"]],
    ids=" ".join,
)
def test_following_a_topic_that_does_not_exist_yet(daemon: Daemon, words: list[str]) -> None:
    with started(daemon, *words, "-f", "new") as process:
        assert said(process) == "log-cli: topic new does not exist; waiting for its first message\n"
        with Client(daemon.address) as client:
            client.push("new", [b"one", b"two"])
        assert said(process) == "log-cli: following new; press Ctrl-C to stop\n"
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, b"")


def test_waiting_for_a_topic_ends_by_ctrl_c_by_a_time_and_when_nobody_reads(daemon: Daemon) -> None:
    with started(daemon, "read", "-f", "new") as process:
        assert "waiting" in said(process)
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, b"")
    with started(daemon, "read", "-f", "new") as process:
        assert "waiting" in said(process)
        assert process.stdout is not None
        process.stdout.close()
        assert ended(process) == (0, b"")
    soon = f"@{now_ms() + 1500}"
    assert log_cli(daemon, "read", "-fq", "new", "--until", soon) == (0, b"", "")


def test_waiting_for_a_topic_while_the_daemon_is_restarted(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--host", lasting_address()) as daemon,
        started(daemon, "read", "-f", "new") as process,
    ):
        assert "waiting" in said(process)
        daemon.stop()
        assert "retrying" in said(process)
        daemon.start()
        with Client(daemon.address) as client:
            client.push("new", [b"one"])
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"


def test_a_glob_that_matches_nothing(daemon: Daemon) -> None:
    assert log_cli(daemon, "read", "no*") == (0, b"", "log-cli: no topic matches no*\n")
    assert log_cli(daemon, "read", "no*", "-q") == (0, b"", "")


def test_following_several_of_which_some_do_not_exist_yet(daemon: Daemon) -> None:
    with (
        Client(daemon.address) as client,
        started(daemon, "read", "-f", "app", "new", "no*") as process,
    ):
        assert said(process) == "log-cli: no topic matches app; waiting for one\n"
        assert said(process) == "log-cli: no topic matches new; waiting for one\n"
        assert said(process) == "log-cli: no topic matches no*; waiting for one\n"
        assert said(process) == "log-cli: following app new no*; press Ctrl-C to stop\n"
        assert process.stdout is not None
        for topic in ("new", "north"):
            client.push(topic, [b"one"])
            assert process.stdout.readline() == topic.encode() + b": one\n"
