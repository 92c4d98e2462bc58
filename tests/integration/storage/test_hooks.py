"""Delete hooks of a real daemon: real programs, real files, real kills."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.storage.data_dirs import fill, wait_for_files
from tests.integration.storage.gates import Gate, is_running, script
from tests.support.daemon import Daemon, Line, dial, messages, push, running, wait_until


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with Gate(tmp_path) as opened:
        yield opened


def hooked(tmp_path: Path, hook: Path, *more: str, **settings: object) -> Daemon:
    """A daemon that keeps one partition per topic, of one push, and runs this on all others."""
    words = ", ".join(f"'{word}'" for word in (str(hook), *more))
    file = tmp_path / "logd.toml"
    file.write_text(f"partition-bytes = 1\nmax-partitions = 1\ndelete-hook = [{words}]\n")
    return running(tmp_path, config=file, **settings)


async def shown(line: Line, topic: str) -> tuple[str, str, str]:
    stats = await line.values(f"STATS {topic}".encode())
    return stats["hook_running"], stats["expired_waiting"], stats["hook_failures"]


def name(first: int) -> str:
    return f"{first:020d}.log"


async def test_a_partition_stays_until_its_hook_has_exited_0(tmp_path: Path, gate: Gate) -> None:
    """And nothing else waits meanwhile: not its own topic, not another, nor another's hook."""
    before = running(tmp_path, partition_bytes=1)
    async with before, dial(before) as line:
        await fill(line, "app", 3)  # all of them are there when retention first looks
        assert before.stop() == 0
    server = hooked(tmp_path, gate.hook)
    async with server, dial(server) as line:
        run = gate.started()
        path = server.topic_dir("app") / name(0)
        assert (run.first, run.path) == (0, str(path))
        await line.send(b"READ app 0 1\r\n")
        await line.expect(b"BATCHES 0 1 %d\r\n" % path.stat().st_size)
        await line.expect(path.read_bytes())
        assert await shown(line, "app") == (name(0), "1", "0")

        await line.send(b"PUSH app\r\nmore\r\nPUSH other\r\none\r\nPUSH other\r\ntwo\r\n")
        await line.expect(b"OK 3 1\r\nOK 0 1\r\nOK 1 1\r\n")
        other = gate.started()  # while the first one still runs
        assert other.path == str(server.topic_dir("other") / name(0))
        gate.let_go(other)
        await line.until("first", 1, "other")
        assert gate.is_quiet()
        assert is_running(run.pid)

        for first in range(3):
            assert run.first == first
            assert path.exists()
            gate.let_go(run)
            await line.until("first", first + 1, "app")
            path = server.topic_dir("app") / name(first + 1)
            if first < 2:
                run = gate.started()
        wait_for_files(server, {"app": 1, "other": 1})
        await line.send(b"READ app 2 1\r\n")
        await line.expect(b"ERR out-of-range first=3 next=4\r\n")
        assert gate.is_quiet()
        assert server.stop() == 0


async def test_a_hook_that_moves_the_file_and_then_fails(tmp_path: Path) -> None:
    """The partition has left, and the topic goes on: it is not taken for one that lost files."""
    hook = script(tmp_path / "hook", f'mv "$1" "{tmp_path}"', "exit 3")
    server = hooked(tmp_path, hook)
    async with server, dial(server) as line:
        await fill(line, "app", 2)
        await line.until("first", 1, "app")
        await line.send(b"PUSH app\r\nmore\r\n")
        await line.expect(b"OK 2 1\r\n")
        await line.until("first", 2, "app")
        wait_for_files(server, {"app": 1})
        assert "faulted" not in server.log
        assert "failed but removed" in server.log


HOOK_ENVIRONMENT = ["LOGD_BYTES", "LOGD_FIRST", "LOGD_MAX_TIME", "LOGD_MIN_TIME", "LOGD_NEXT",
                    "LOGD_PARTITION", "LOGD_TOPIC"]  # fmt: skip


async def test_what_a_hook_is_told_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces in every path, words that a shell would run, and a secret in the daemon's own
    environment."""
    monkeypatch.setenv("SECRET", "do not tell")
    place = tmp_path / "with space $(touch ran)"
    place.mkdir()
    hook = script(
        place / "my hook",
        f"cat /proc/$$/environ > '{place}/environ'",
        f"printf '%s\\n' \"$@\" > '{place}/words'",
        f"cp \"$3\" '{place}/copy'",
    )
    server = hooked(place, hook, "$(touch ran)", "a  b")
    async with server, dial(server) as line:
        await line.send(push("app", b"one\ntwo\n"))
        await line.expect(b"OK 0 2\r\n")
        rows = (await line.ask(b"PARTITIONS app\r\n")).body.decode().split()
        data = server.stored("app")
        await line.send(push("app", b"three\n"))
        await line.expect(b"OK 2 1\r\n")
        await line.until("first", 2, "app")
        wait_for_files(server, {"app": 1})
    path = str(server.topic_dir("app") / name(0))
    assert (place / "words").read_text().splitlines() == ["$(touch ran)", "a  b", path]
    variables = dict(
        word.split("=", 1) for word in (place / "environ").read_text().rstrip("\0").split("\0")
    )
    assert sorted(variables) == ["LANG", *HOOK_ENVIRONMENT, "PATH"]
    first, next_, size, min_time, max_time = rows
    assert {key: value for key, value in variables.items() if key.startswith("LOGD_")} == {
        "LOGD_TOPIC": "app", "LOGD_PARTITION": name(0), "LOGD_FIRST": first, "LOGD_NEXT": next_,
        "LOGD_BYTES": size, "LOGD_MIN_TIME": min_time, "LOGD_MAX_TIME": max_time,
    }  # fmt: skip
    assert (place / "copy").read_bytes() == data
    assert messages(data) == [b"one", b"two"]
    assert not list(tmp_path.rglob("ran"))


async def test_a_hook_that_fails_twice_and_then_succeeds(tmp_path: Path, gate: Gate) -> None:
    server = hooked(tmp_path, gate.hook)
    async with server, dial(server) as line:
        await fill(line, "app", 2)
        started_at = []
        for failures in (1, 2):
            run = gate.started()
            assert run.first == 0
            started_at.append(time.monotonic())
            gate.let_go(run, 1)
            await line.until("hook_failures", failures, "app")
            assert await shown(line, "app") == ("-", "1", str(failures))
            assert (server.topic_dir("app") / name(0)).exists()
            assert (await line.ask(b"READ app 0 1\r\n")).head.startswith(b"BATCHES 0 1 ")
        run = gate.started()
        started_at.append(time.monotonic())
        gate.let_go(run)
        await line.until("first", 1, "app")
        assert await shown(line, "app") == ("-", "0", "0")
        assert started_at[1] - started_at[0] >= 0.9
        assert started_at[2] - started_at[1] >= 1.9
        kept = f"delete hook of topic app, {name(0)}: exit 1; the partition is kept"
        wait_until(lambda: server.log.count(kept) == 2)


async def test_a_daemon_killed_in_the_middle_runs_the_hook_again(
    tmp_path: Path, gate: Gate
) -> None:
    server = hooked(tmp_path, gate.hook)
    async with server, dial(server) as line:
        await fill(line, "app", 2)
        assert gate.started().first == 0
        server.kill()
    assert (server.topic_dir("app") / name(0)).exists()
    async with server, dial(server) as line:
        run = gate.started()
        assert run.first == 0
        gate.let_go(run)
        await line.until("first", 1, "app")


async def test_a_stop_waits_for_a_hook(tmp_path: Path, gate: Gate) -> None:
    server = hooked(tmp_path, gate.hook, stop_timeout=30)
    async with server, dial(server) as line:
        await fill(line, "app", 3)
        run = gate.started()
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        await until_it_takes_no_connections(server)
        assert server.process.poll() is None
        gate.let_go(run)
        assert server.process.wait(30) == 0
    assert [path.name for path in server.log_files("app")] == [name(1), name(2)]
    async with server, dial(server) as line:
        stats = await line.values(b"STATS app")
        assert (stats["first"], stats["epoch"]) == ("1", "1")
        run = gate.started()
        assert run.first == 1
        gate.let_go(run)


async def until_it_takes_no_connections(server: Daemon) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            async with dial(server):
                pass


async def test_a_stop_does_not_wait_for_ever(tmp_path: Path, gate: Gate) -> None:
    stop_s = 8  # of which the hook has 70 %: the rest is for the syncs behind it
    server = hooked(tmp_path, gate.hook, stop_timeout=stop_s)
    async with server, dial(server) as line:
        await fill(line, "app", 2)
        run = gate.started()
        asked_at = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - asked_at < stop_s + 5
        assert not is_running(run.pid)
    assert (server.topic_dir("app") / name(0)).exists()
    async with server, dial(server) as line:
        assert (await line.values(b"STATS app"))["epoch"] == "1"  # the stop was a clean one
        run = gate.started()
        assert run.first == 0
        gate.let_go(run)
        await line.until("first", 1, "app")


async def test_a_hook_that_hangs_is_ended_and_holds_up_nothing(tmp_path: Path) -> None:
    hook = script(
        tmp_path / "hook",
        f"trap '' TERM; echo $$ >> '{tmp_path}/pids'",
        "while :; do sleep 1000; done",
    )
    server = hooked(tmp_path, hook, hook_timeout="300ms")
    async with server, dial(server) as line:
        await fill(line, "app", 2)
        wait_until(lambda: (tmp_path / "pids").exists())
        await line.send(b"PUSH app\r\nmore\r\nPUSH other\r\nmore\r\n")
        await line.expect(b"OK 2 1\r\nOK 0 1\r\n")
        await line.until("hook_failures", 1, "app")
        wait_until(lambda: "still running after 0.3 s" in server.log)
        assert (server.topic_dir("app") / name(0)).exists()
        assert server.stop() == 0
    pids = list(map(int, (tmp_path / "pids").read_text().split()))
    assert not any(map(is_running, pids))


async def test_a_hook_that_cannot_be_started_keeps_everything(tmp_path: Path) -> None:
    server = hooked(tmp_path, tmp_path / "hook")
    async with server, dial(server) as line:
        await fill(line, "app", 2)
        wait_until(lambda: f"cannot start {tmp_path}/hook" in server.log)
        assert len(server.log_files("app")) == 2
        script(tmp_path / "hook", "exit 0")  # somebody mends it
        await line.until("first", 1, "app")


async def test_a_hooks_output_is_in_the_log_and_stays_on_its_line(tmp_path: Path) -> None:
    hook = script(
        tmp_path / "hook",
        r"printf 'copied\n\033]0;title\007\033[2J\r2026 ERROR forged\n'; exit 0",
    )
    server = hooked(tmp_path, hook)
    async with server, dial(server) as line:
        await fill(line, "app", 2)
        await line.until("first", 1, "app")
        assert server.stop() == 0
        lines = [text for text in server.log.splitlines() if "delete hook of topic app" in text]
        assert [text.split(": ", 1)[1] for text in lines] == [
            "'copied'",
            r"'\x1b]0;title\x07\x1b[2J\r2026 ERROR forged'",
        ]
        assert "\x1b" not in server.log


async def test_a_hook_that_prints_100_mb_costs_no_memory_and_no_place(tmp_path: Path) -> None:
    hook = script(tmp_path / "hook", "head -c 100000000 /dev/zero", "exit 0")
    server = hooked(tmp_path, hook)
    async with server, dial(server) as line:
        await fill(line, "app", 1)
        before = server.rss_bytes()
        await fill(line, "app", 1)
        await line.until("first", 1, "app")
        assert server.rss_bytes() - before < 16 << 20
        assert len(server.log) < 100_000
