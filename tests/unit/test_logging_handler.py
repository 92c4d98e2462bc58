"""The handler on a writer in memory: what is sent, dropped, reported, counted and set aside."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logd.client import dropping_writer
from logd.client.spool import SpoolError
from logd.errors import BadRequest, LogdError, TopicLimit
from logd.logging import handler as handler_module
from logd.logging.handler import LogdHandler
from tests.support.clock import Clock


class Memory:
    """Takes messages while there is room; `settle` stores what it has, and makes room."""

    made: list[Memory]

    def __init__(self, target: str, topic: str, **settings: Any) -> None:
        assert (settings["full"], settings["connect"]) == ("drop", "later")
        assert settings["patience_s"] == math.inf
        self.room = 1_000_000
        self.messages: list[bytes] = []
        self.acknowledged = self.dropped = 0
        self.spool = None
        self.failure: Exception | None = None
        self.is_closed = threading.Event()
        self.is_flushed = threading.Event()
        self.during_write: Callable[[], None] = lambda: None
        self.refuse = settings["on_refused"]
        self.made.append(self)

    def write(self, message: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.during_write()
        if self.room <= 0:
            self.dropped += 1
            return
        self.room -= 1
        self.messages.append(message)

    def settle(self, room: int = 1_000_000) -> None:
        self.acknowledged, self.room = len(self.messages), room

    def flush(self, timeout_s: float | None = None) -> None:
        if self.acknowledged < len(self.messages) and not self.is_flushed.wait(timeout_s):
            raise TimeoutError

    def close(self, timeout_s: float | None = None) -> None:
        self.is_closed.set()

    @property
    def said(self) -> list[str]:
        return [json.loads(message)["message"] for message in self.messages]


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Memory]:
    monkeypatch.setattr(Memory, "made", [], raising=False)
    monkeypatch.setattr(handler_module, "Writer", Memory)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    return Memory.made


@pytest.fixture
def handler(writers: list[Memory]) -> Iterator[LogdHandler]:
    made = LogdHandler("127.0.0.1:1", "app", close_s=0.0)
    yield made
    made.close()


@pytest.fixture
def writer(handler: LogdHandler, writers: list[Memory]) -> Memory:
    return writers[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(dropping_writer, "monotonic", made)
    return made


def record(message: object, *args: object, name: str = "shop") -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "shop.py", 7, message, args, None)


def log(handler: LogdHandler, *messages: str) -> None:
    for message in messages:
        handler.handle(record(message))


def counts(handler: LogdHandler) -> tuple[int, int, int, int]:
    return handler.emitted, handler.sent, handler.dropped, handler.failed


DROPPED = "{} log records were dropped here: the server was down or too slow"


def test_records_of_the_clients_themselves_are_not_sent(
    handler: LogdHandler, writer: Memory
) -> None:
    for name in ("logd", "logd.writer", "logdx", "x.logd"):
        handler.handle(record(name, name=name))
    assert writer.said == ["logdx", "x.logd"]
    assert handler.emitted == 2


# -- drops --------------------------------------------------------------------------------------


def test_a_report_stands_where_the_dropped_ones_would_be(
    handler: LogdHandler, writer: Memory
) -> None:
    writer.room = 2
    log(handler, "1", "2", "3", "4", "5")
    writer.settle()
    log(handler, "6", "7")
    assert writer.said == ["1", "2", DROPPED.format(3), "6", "7"]
    report = json.loads(writer.messages[2])
    assert (report["level"], report["logger"], report["dropped"]) == ("WARNING", "logd.handler", 3)
    assert counts(handler) == (7, 4, 3, 0)


def test_nothing_is_tried_while_nothing_has_moved(handler: LogdHandler, writer: Memory) -> None:
    writer.room = 1
    log(handler, "1", "2")
    writer.room = 5  # a smaller message might fit; the order of the report would be wrong
    log(handler, "3")
    assert writer.said == ["1"]
    assert (handler.dropped, writer.dropped) == (2, 1)


def test_room_for_the_report_alone(handler: LogdHandler, writer: Memory) -> None:
    writer.room = 1
    log(handler, "1", "2")
    writer.settle(room=1)
    log(handler, "3", "4")
    writer.settle()
    log(handler, "5")
    assert writer.said == ["1", DROPPED.format(1), DROPPED.format(2), "5"]
    assert counts(handler) == (5, 2, 3, 0)


def test_no_room_even_for_the_report(handler: LogdHandler, writer: Memory) -> None:
    writer.room = 1
    log(handler, "1", "2")
    writer.settle(room=0)
    log(handler, "3", "4")
    assert (writer.said, handler.dropped) == (["1"], 3)


def test_a_program_that_falls_silent_still_reports(handler: LogdHandler, writer: Memory) -> None:
    reported = threading.Event()
    writer.room = 1
    log(handler, "1", "2")
    writer.during_write = reported.set
    writer.settle()
    writer.is_flushed.set()
    assert reported.wait(10)
    handler.flush()
    assert writer.said == ["1", DROPPED.format(1)]


def test_what_is_dropped_at_the_end_is_reported_by_close(
    handler: LogdHandler, writer: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropping_writer, "_started", lambda run: None)  # nobody else does
    writer.room = 1
    log(handler, "1", "2")
    writer.settle()
    handler.close()
    assert writer.said == ["1", DROPPED.format(1)]


def test_what_nobody_was_told_is_said_on_stderr(
    handler: LogdHandler,
    writer: Memory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", True)
    writer.room = 2
    log(handler, "1", "2", "3", "4", "5")
    handler.close()
    said = "logd: 5 log records were not stored in topic app\n"
    assert capsys.readouterr().err == said
    assert counts(handler) == (5, 2, 3, 2)
    handler.close()
    log(handler, "6")
    assert capsys.readouterr().err == ""
    assert counts(handler) == (6, 2, 4, 2)


@pytest.mark.parametrize(
    ("between", "waits"), [("", [5.0, 0.0]), ("a record", [5.0, 5.0]), ("progress", [5.0, 5.0])]
)
def test_a_flush_in_vain_is_not_repeated_by_close(
    writers: list[Memory], monkeypatch: pytest.MonkeyPatch, between: str, waits: list[float]
) -> None:
    waited: list[float] = []

    def flush(timeout_s: float) -> None:
        waited.append(round(timeout_s))
        raise TimeoutError

    handler = LogdHandler("127.0.0.1:1", "app", close_s=5.0)
    monkeypatch.setattr(writers[0], "flush", flush)
    log(handler, "1", "2")
    handler.flush()
    if between == "a record":
        log(handler, "3")
    elif between == "progress":
        writers[0].acknowledged += 1
    handler.close()
    assert waited[:2] == waits


def test_a_report_that_is_lost_is_no_lost_record(handler: LogdHandler, writer: Memory) -> None:
    writer.room = 1
    log(handler, "1", "2")
    writer.settle()
    log(handler, "3")
    handler.close()
    assert counts(handler) == (3, 2, 1, 1)


# -- failures -----------------------------------------------------------------------------------


def test_after_a_failure_there_is_another_writer(
    handler: LogdHandler, writer: Memory, writers: list[Memory], clock: Clock
) -> None:
    log(handler, "1", "2")
    writer.acknowledged = 1
    writer.failure = TopicLimit("enough")
    log(handler, "3", "4")
    assert (counts(handler), handler.errors) == ((4, 2, 2, 1), 1)
    assert writer.is_closed.wait(10)
    clock.now_s += dropping_writer.REOPEN_S
    log(handler, "5")
    assert writers[1].said == [DROPPED.format(2), "5"]
    writers[1].settle()
    assert (handler.acknowledged, handler.sent) == (3, 3)


def test_no_other_writer_can_be_had(
    handler: LogdHandler, writer: Memory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("too many open files")

    writer.failure = TopicLimit("enough")
    log(handler, "1")
    monkeypatch.setattr(handler, "_make_writer", fail)
    clock.now_s += dropping_writer.REOPEN_S
    log(handler, "2", "3")
    assert (counts(handler), handler.errors) == ((3, 0, 3, 0), 2)


def test_what_is_refused_has_failed(handler: LogdHandler, writer: Memory) -> None:
    log(handler, "1", "2", "3")
    error: LogdError = BadRequest("no")
    writer.refuse(2, error)
    assert handler.failed == 2
    writer.acknowledged = 1
    handler.close()
    assert counts(handler) == (3, 3, 0, 2)


def test_errors_go_where_logging_sends_them(
    handler: LogdHandler, writer: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[logging.LogRecord] = []
    monkeypatch.setattr(handler, "handleError", handled.append)
    writer.failure = TopicLimit("enough")
    wrong = record("wrong")
    handler.handle(wrong)
    assert handled == [wrong]


# -- formatting ---------------------------------------------------------------------------------


def test_a_message_that_cannot_be_formatted_is_sent_as_it_is(
    handler: LogdHandler, writer: Memory
) -> None:
    handler.handle(record("%d of %s", "x"))
    values = json.loads(writer.messages[0])
    assert values["message"].startswith("%d of %s ('x',) (not formatted: TypeError: ")
    assert (values["logger"], values["level"]) == ("shop", "INFO")
    assert (handler.errors, counts(handler)) == (1, (1, 1, 0, 0))


def test_a_formatter_that_fails_always(handler: LogdHandler, writer: Memory) -> None:
    handler.setFormatter(logging.Formatter("%(missing)s"))
    log(handler, "hello")
    assert writer.messages[0].startswith(b"INFO shop: hello () (not formatted: ")
    assert handler.errors == 1


def test_text(handler: LogdHandler, writer: Memory) -> None:
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log(handler, "caf\xe9", "two\nlines", "\udc80")
    assert writer.messages == ["INFO café".encode(), b"INFO two\nlines", b"INFO \\udc80"]


def test_basic_config_leaves_json_alone(handler: LogdHandler) -> None:
    before, root = handler.formatter, logging.getLogger()
    kept = root.handlers[:]
    try:
        logging.basicConfig(handlers=[handler], force=False)
    finally:
        root.handlers[:] = kept
    assert handler.formatter is before


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_long_text_is_cut(writers: list[Memory], letter: str) -> None:
    handler = LogdHandler("127.0.0.1:1", "app", max_bytes=1024, close_s=0.0)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log(handler, letter * 2000)
    data = writers[0].messages[0]
    assert 900 < len(data) <= 1024
    assert data.decode().endswith("… [cut: 2000 characters]")
    handler.close()


# -- logging while logging ----------------------------------------------------------------------


def test_a_record_in_the_middle_of_a_write_is_set_aside(
    handler: LogdHandler, writer: Memory
) -> None:
    def log_once_more() -> None:
        writer.during_write = lambda: None
        log(handler, "in between")
        handler.flush()
        handler.close()
        assert writer.messages == []

    writer.during_write = log_once_more
    log(handler, "1", "2")
    assert writer.said == ["1", "in between", "2"]
    assert counts(handler) == (3, 3, 0, 0)


def test_a_record_of_the_writers_own_thread_is_set_aside(
    handler: LogdHandler, writer: Memory
) -> None:
    def finalize() -> None:
        log(handler, "finalized")

    assert handler.lock is not None
    with handler.lock:  # as a thread has it that waits for the writer's lock
        thread = threading.Thread(target=finalize, name="logd-writer", daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    assert handler.emitted == 0
    log(handler, "1")
    assert writer.said == ["finalized", "1"]


def test_a_record_during_a_flush_is_set_aside_and_sent_behind_it(
    handler: LogdHandler, writer: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush(timeout_s: float | None = None) -> None:
        log(handler, "signal")
        assert writer.messages == []

    with monkeypatch.context() as patch:
        patch.setattr(writer, "flush", flush)
        handler.flush()
    assert writer.said == ["signal"]


def test_so_many_are_set_aside_and_the_others_counted(
    handler: LogdHandler, writer: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_module, "MAX_ASIDE", 2)
    thread = threading.Thread(target=lambda: log(handler, *"abcde"), name="logd-writer")
    thread.start()
    thread.join()
    log(handler, "1")
    assert writer.said == ["a", "b"]
    assert counts(handler) == (6, 2, 4, 0)
    writer.settle()
    log(handler, "2")
    assert writer.said == ["a", "b", DROPPED.format(4), "2"]


# -- settings -----------------------------------------------------------------------------------


def test_wrong_settings_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="not an address"):
        LogdHandler("here and there", "app")
    with pytest.raises(LogdError):
        LogdHandler("127.0.0.1:1", "../app")


@pytest.mark.parametrize("address", ["here and there", 7])
def test_a_handler_that_could_not_be_made_is_closed_all_the_same(address: Any) -> None:
    made: list[LogdHandler] = []

    class Kept(LogdHandler):
        def createLock(self) -> None:
            made.append(self)
            super().createLock()

    with pytest.raises((ValueError, TypeError)):
        Kept(address, "app")
    made[0].flush()
    made[0].close()


def test_each_process_has_a_spool_of_its_own(tmp_path: Path) -> None:
    first = LogdHandler("127.0.0.1:1", "app", spool=tmp_path, close_s=0.0)
    second = LogdHandler("127.0.0.1:1", "app", spool=str(tmp_path), close_s=0.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
    first.close()
    second.close()


def test_a_damaged_spool_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "state").write_text("?")
    with pytest.raises(SpoolError, match="damaged"):
        LogdHandler("127.0.0.1:1", "app", spool=tmp_path)
