"""The logging handler with real daemons: configured as programs do, forked, interrupted, ended."""

from __future__ import annotations

import asyncio
import json
import logging
import logging.config
import logging.handlers
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from logd import LogdHandler, log_context
from logd.logging.records import ContextFilter
from tests.support.daemon import HANG_S, ROOT, Daemon, lasting_address, messages, running

PROMPT_S = 10.0  # far above what it takes, far below what it would take to wait for a daemon
NOBODY = "127.0.0.1:1"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path) as started:
        yield started


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger that nobody else listens to; its handlers are closed in the end."""
    made = logging.Logger("shop")
    yield made
    for handler in made.handlers:
        handler.close()


def stored(daemon: Daemon, topic: str = "app") -> list[dict[str, Any]]:
    return [json.loads(message) for message in messages(daemon.stored(topic))]


def said(daemon: Daemon, topic: str = "app") -> list[str]:
    return [record["message"] for record in stored(daemon, topic)]


def run(program: str, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of its own; `address` and `logging` are there already."""
    start = f"import logging, os, sys\nfrom logd import LogdHandler\naddress = {address!r}\n"
    command = [sys.executable, "-W", "error", "-c", start + program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * HANG_S)


def assert_went_well(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


# -- set up as programs do ----------------------------------------------------------------------


def test_by_a_dictionary(daemon: Daemon) -> None:
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {
                "logd": {
                    "class": "logd.LogdHandler",
                    "level": "INFO",
                    "target": daemon.address,
                    "topic": "app",
                    "fields": {"service": "billing"},
                    "include": ["pid"],
                    "close_s": HANG_S,
                }
            },
            "loggers": {"test_by_a_dictionary": {"handlers": ["logd"], "level": "DEBUG"}},
        }
    )
    log = logging.getLogger("test_by_a_dictionary")
    log.debug("not this")
    log.info("this", extra={"order": 17})
    log.handlers.pop().close()
    (record,) = stored(daemon)
    assert (record["message"], record["pid"]) == ("this", os.getpid())
    assert (record["service"], record["order"]) == ("billing", 17)


def test_behind_a_queue(daemon: Daemon, log: logging.Logger) -> None:
    handler = LogdHandler(daemon.address, "app", close_s=HANG_S)
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    before = logging.handlers.QueueHandler(records)
    before.addFilter(ContextFilter())
    log.addHandler(before)
    listener = logging.handlers.QueueListener(records, handler)
    listener.start()
    with log_context(request_id="abc"):
        log.info("%s", "hello", extra={"order": 17})
    listener.stop()
    handler.close()
    (record,) = stored(daemon)
    assert (record["message"], record["order"]) == ("hello", 17)
    assert record["request_id"] == "abc"


def test_from_many_threads(daemon: Daemon, log: logging.Logger) -> None:
    handler = LogdHandler(daemon.address, "app", close_s=HANG_S)
    log.addHandler(handler)

    def work(name: int) -> None:
        for number in range(500):
            log.info("%d", number, extra={"worker": name})

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handler.close()
    assert (handler.emitted, handler.sent, handler.acknowledged) == (4000, 4000, 4000)
    records = stored(daemon)
    for name in range(8):
        own = [record["message"] for record in records if record["worker"] == name]
        assert own == [str(number) for number in range(500)]


async def test_a_loop_goes_on(daemon: Daemon, log: logging.Logger) -> None:
    """While the daemon stands still, a task that logs a lot does not hold up the others."""
    handler = LogdHandler(daemon.address, "app", queue_bytes=1 << 18)
    log.addHandler(handler)
    os.kill(daemon.pid, signal.SIGSTOP)

    async def work(name: int) -> None:
        with log_context(task=name):
            for _ in range(500):
                log.info("x" * 100)
                await asyncio.sleep(0)

    async with asyncio.timeout(PROMPT_S):
        await asyncio.gather(*(work(name) for name in range(10)))
    os.kill(daemon.pid, signal.SIGCONT)
    assert await asyncio.to_thread(close_all, handler)
    assert handler.dropped > 0
    assert_complete(handler, stored(daemon))


def close_all(handler: LogdHandler) -> bool:
    """Close, with all the time it takes; is everything stored?"""
    handler._close_s = HANG_S
    handler.close()
    return handler.failed == 0


def assert_complete(handler: LogdHandler, records: list[dict[str, Any]]) -> None:
    """Each record is there, or a report in its place counts it."""
    reported = sum(record["dropped"] for record in records if record["logger"] == "logd.handler")
    arrived = sum(record["logger"] != "logd.handler" for record in records)
    assert reported == handler.dropped
    assert arrived + handler.dropped == handler.emitted


# -- a daemon that is away, or stands still -----------------------------------------------------


def test_a_daemon_that_is_away_costs_no_time(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = LogdHandler(NOBODY, "app", queue_bytes=1 << 20, close_s=0.1)
    log.addHandler(handler)
    start_s = monotonic()
    for number in range(20_000):
        log.info("%d %s", number, "x" * 100)
    log.error("%d", "wrong")
    handler.close()
    assert monotonic() - start_s < PROMPT_S
    assert handler.emitted == 20_001 == handler.sent + handler.dropped
    assert handler.failed == handler.sent
    assert "logd: 20001 log records were not stored in topic app\n" in capsys.readouterr().err


@pytest.mark.parametrize("met_before", [False, True])
def test_a_daemon_that_stands_still_costs_no_time(
    daemon: Daemon, log: logging.Logger, met_before: bool
) -> None:
    handler = LogdHandler(daemon.address, "app", queue_bytes=1 << 20, close_s=PROMPT_S)
    log.addHandler(handler)
    if met_before:
        log.info("hello")
        handler.flush()
    os.kill(daemon.pid, signal.SIGSTOP)
    start_s = monotonic()
    for _ in range(20_000):
        log.info("x" * 300)
    assert monotonic() - start_s < PROMPT_S
    assert handler.dropped > 0
    os.kill(daemon.pid, signal.SIGCONT)
    assert close_all(handler)
    assert_complete(handler, stored(daemon))


def test_closing_has_a_limit(daemon: Daemon, log: logging.Logger) -> None:
    """Also where the writer waits for a daemon that takes the connection and says nothing."""
    logging.raiseExceptions = False
    handler = LogdHandler(daemon.address, "app", timeout_s=HANG_S, close_s=0.1)
    log.addHandler(handler)
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        log.info("hello")
        start_s = monotonic()
        handler.close()
        assert monotonic() - start_s < PROMPT_S
        assert (handler.sent, handler.failed) == (1, 1)
    finally:
        logging.raiseExceptions = True
        os.kill(daemon.pid, signal.SIGCONT)


def test_a_daemon_that_comes_later(tmp_path: Path, log: logging.Logger) -> None:
    address = lasting_address()
    handler = LogdHandler(address, "app", queue_bytes=1 << 17)
    log.addHandler(handler)
    for number in range(3000):
        log.info("%d %s", number, "x" * 100)
    assert handler.dropped > 0
    with running(tmp_path, "--host", address) as daemon:
        assert close_all(handler)
        assert_complete(handler, stored(daemon))


def test_drops_are_reported_though_the_program_falls_silent(
    daemon: Daemon, log: logging.Logger
) -> None:
    handler = LogdHandler(daemon.address, "app", queue_bytes=1)
    log.addHandler(handler)
    os.kill(daemon.pid, signal.SIGSTOP)
    while not handler.dropped:
        log.info("x" * 10_000)
    os.kill(daemon.pid, signal.SIGCONT)
    end_s = monotonic() + HANG_S
    while handler.acknowledged < handler.sent + 1:
        assert monotonic() < end_s
        handler.flush()
    assert stored(daemon)[-1]["dropped"] == handler.dropped


def test_what_the_daemon_refuses_is_counted_and_the_rest_goes_on(
    tmp_path: Path, log: logging.Logger
) -> None:
    with running(tmp_path, max_batch_bytes=1024) as daemon:
        handler = LogdHandler(daemon.address, "app", close_s=HANG_S)
        log.addHandler(handler)
        for message in ("one", "x" * 2000, "two"):
            log.info(message)
            handler.flush()
        handler.close()
        assert said(daemon) == ["one", "two"]
    assert (handler.sent, handler.failed, handler.acknowledged) == (3, 1, 2)


# -- processes ----------------------------------------------------------------------------------


def test_a_program_that_just_ends(daemon: Daemon) -> None:
    program = """
logging.basicConfig(handlers=[LogdHandler(address, "app", close_s=30)], level="INFO")
logging.info("hello")
"""
    assert_went_well(run(program, daemon.address))
    assert said(daemon) == ["hello"]


def test_a_program_that_ends_while_nobody_is_there() -> None:
    program = """
logging.basicConfig(handlers=[LogdHandler(address, "app", close_s=0.1)], level="INFO")
logging.info("hello")
"""
    done = run(program, NOBODY)
    assert done.returncode == 0
    assert done.stderr == "logd: 1 log records were not stored in topic app\n"


FORKED = """
handler = LogdHandler(address, "app", include=["pid"], close_s=30)
logging.basicConfig(handlers=[handler], level="INFO")
logging.info("before")
if sys.argv[1] == "flushed":
    handler.flush()
children = []
for number in range(4):
    child = os.fork()
    if not child:
        for line in range(100):
            logging.info("%d", line)
        assert handler.emitted == 100, handler.emitted
        logging.shutdown()
        assert handler.acknowledged == 100, handler.acknowledged
        os._exit(0)
    children.append(child)
    logging.info("forked")
codes = [os.waitpid(child, 0)[1] for child in children]
logging.info("after")
logging.shutdown()
assert codes == [0] * 4, codes
assert handler.emitted == handler.acknowledged == 6
print(os.getpid(), *children)
"""


@pytest.mark.parametrize("when", ["flushed", "at once"])
def test_after_a_fork_each_process_sends_its_own(daemon: Daemon, when: str) -> None:
    done = run(FORKED, daemon.address, when)
    assert_went_well(done)
    parent, *children = map(int, done.stdout.split())
    by_pid: dict[int, list[str]] = {pid: [] for pid in (parent, *children)}
    for record in stored(daemon):
        by_pid[record["pid"]].append(record["message"])
    assert by_pid.pop(parent) == ["before", *["forked"] * 4, "after"]
    assert list(by_pid.values()) == [[str(line) for line in range(100)]] * 4


def test_a_child_that_logs_nothing_keeps_nothing_of_the_parents(daemon: Daemon) -> None:
    program = """
logging.basicConfig(handlers=[handler := LogdHandler(address, "app", close_s=30)], level="INFO")
def sockets():
    links = (os.readlink(f"/proc/self/fd/{fd}") for fd in map(int, os.listdir("/proc/self/fd"))
             if os.path.islink(f"/proc/self/fd/{fd}"))
    return sum(link.startswith(("socket:", "anon_inode:[eventfd]")) for link in links)
logging.info("hello")
handler.flush()
assert sockets() == 2, sockets()
if not os.fork():
    os._exit(sockets())
assert os.wait()[1] == 0
"""
    assert_went_well(run(program, daemon.address))


def test_forks_with_a_spool(daemon: Daemon, tmp_path: Path) -> None:
    program = """
handler = LogdHandler(address, "app", spool=sys.argv[1], close_s=30)
logging.basicConfig(handlers=[handler], level="INFO")
logging.info("parent")
if not os.fork():
    logging.info("child")
    logging.shutdown()
    os._exit(0)
assert os.wait()[1] == 0
"""
    assert_went_well(run(program, daemon.address, str(tmp_path / "spool")))
    assert sorted(said(daemon)) == ["child", "parent"]
    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == ["0", "1"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing(daemon: Daemon, method: str, tmp_path: Path) -> None:
    """They end without `atexit`."""
    path = tmp_path / "program.py"
    path.write_text("""
import logging, multiprocessing, sys
from logd import LogdHandler
logging.basicConfig(handlers=[LogdHandler(sys.argv[2], "app", close_s=30)], level="INFO")
def work(number):
    logging.info("%d", number)
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    workers = [context.Process(target=work, args=(number,)) for number in range(3)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
""")
    command = [sys.executable, "-W", "error", str(path), method, daemon.address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * HANG_S)
    assert_went_well(done)
    assert sorted(said(daemon)) == ["0", "1", "2"]


def test_what_is_in_a_spool_survives_the_program(daemon: Daemon, tmp_path: Path) -> None:
    program = """
handler = LogdHandler(address, "app", spool=sys.argv[1], close_s=0.1)
logging.basicConfig(handlers=[handler], level="INFO")
logging.info(sys.argv[2])
"""
    spool = str(tmp_path / "spool")
    assert_went_well(run(program, NOBODY, spool, "first"))
    assert_went_well(run(program.replace("0.1", "30"), daemon.address, spool, "second"))
    assert said(daemon) == ["first", "second"]


# -- logging at any moment ----------------------------------------------------------------------


def test_signal_handlers_may_log(daemon: Daemon) -> None:
    """A thousand signals, most of them in the middle of logging, some with a lock held."""
    program = """
import signal
handler = LogdHandler(address, "app", close_s=30, queue_bytes=1 << 30)
logging.basicConfig(handlers=[handler], level="INFO")
seen = written = 0
def note(*_):
    global seen
    seen += 1
    logging.info("signal")
signal.signal(signal.SIGALRM, note)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
while seen < 1000:
    written += 1
    logging.info("x" * 2000)
signal.setitimer(signal.ITIMER_REAL, 0)
logging.shutdown()
assert handler.emitted == handler.acknowledged == seen + written
"""
    assert_went_well(run(program, daemon.address))


def test_finalizers_may_log_in_the_writers_thread(daemon: Daemon) -> None:
    """The garbage is collected there, while that thread holds the writer's lock."""
    program = """
import gc, threading
from logd import Writer
add_due = Writer._add_due
def collect_and_add(writer, now_s):
    gc.collect()
    return add_due(writer, now_s)
Writer._add_due = collect_and_add
gc.disable()
handler = LogdHandler(address, "app", close_s=30, queue_bytes=1 << 30)
logging.basicConfig(handlers=[handler], level="INFO")
seen, gone = set(), []
class Last:
    def __init__(self):
        self.itself = self
    def __del__(self):
        seen.add(threading.current_thread().name)
        logging.info("gone")
        gone.append(1)
written = 0
while "logd-writer" not in seen or written < 1000:
    Last()
    written += 1
    logging.info("x")
while len(gone) < written:
    gc.collect()  # does nothing while the other thread collects
logging.shutdown()
assert handler.emitted == handler.acknowledged == 2 * written
"""
    assert_went_well(run(program, daemon.address))
