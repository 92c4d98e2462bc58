"""Writes: every row once, whatever its bytes, also where the same work is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from logd import Client
from logd.batch import encode_body
from pyspark_logd.arrow_batches import ArrowBody
from pyspark_logd.batch_sender import BATCHES_PER_NAME, BatchSender
from pyspark_logd.options import Location, SourceWriteOptions
from pyspark_logd.writer import write
from tests.integration.spark.rows import numbered, payloads, push, stored
from tests.support.daemon import Daemon, batches, lasting_address, running


def save(frame: Any, daemon: Daemon, **options: object) -> None:
    frame.write.format("logd").mode("append").options(host=daemon.address, **options).save()


def record_batches(values: list[bytes], size: int = 100) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(values), size):
        yield pa.record_batch([pa.array(values[at : at + size], pa.binary())], ["value"])


def test_bytes_of_every_kind(spark: Any, daemon: Daemon) -> None:
    messages = payloads(3, 500)
    frame = spark.createDataFrame(
        [(n, bytearray(m)) for n, m in enumerate(messages)], "n int, value binary"
    )
    save(frame.coalesce(1).select("value"), daemon, topic="app")
    assert stored(daemon.address, "app") == messages


def test_strings_several_tasks_and_compression(spark: Any, daemon: Daemon) -> None:
    frame = spark.range(10_000).repartition(4).selectExpr("concat('n° ', id) as value")
    save(frame, daemon, topic="app", compress="true")
    found = stored(daemon.address, "app")
    assert sorted(found) == sorted(f"n° {n}".encode() for n in range(10_000))
    assert {batch.header.enc for batch in batches(daemon.stored("app"))} == {"lines+zstd"}


def test_rows_that_name_their_topic(spark: Any, daemon: Daemon) -> None:
    frame = spark.range(1000).selectExpr("concat('t', id % 3) as topic", "string(id) as value")
    save(frame.coalesce(1), daemon)
    for n in range(3):
        assert stored(daemon.address, f"t{n}") == [b"%d" % i for i in range(n, 1000, 3)]


def test_no_rows(spark: Any, daemon: Daemon) -> None:
    save(spark.range(0).selectExpr("string(id) as value"), daemon, topic="app")
    with Client(daemon.address) as client:
        assert client.topics() == []


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (["id"], {"topic": "app"}, "rows need a column value of type string or binary"),
        (["id as value"], {"topic": "app"}, "rows need a column value of type string or binary"),
        (["'x' as value", "id"], {"topic": "app"}, "logd cannot store the column id; select value"),
        (["'x' as value"], {}, "set the option topic, or select a column topic"),
        (["'x' as value", "'a' as topic"], {"topic": "app"}, "exclude each other"),
        (["'x' as value", "id as topic"], {}, "the column topic must be a string"),
        (["string(null) as value"], {"topic": "app"}, r"a row has no value \(null\)"),
        (["'x' as value", "string(null) as topic"], {}, r"a row has no topic \(null\)"),
        (["'x' as value", "'a/b' as topic"], {}, "a topic is 1 to 128 of"),
        (
            ["'x' as value"],
            {"topic": "app", "host": "127.0.0.1:1"},
            "no logd answers at 127.0.0.1:1",
        ),
    ],
)
def test_what_cannot_be_written(
    spark: Any, daemon: Daemon, columns: list[str], options: dict[str, str], sentence: str
) -> None:
    writer = spark.range(1).selectExpr(*columns).write.format("logd").mode("append")
    with pytest.raises(Exception, match=sentence) as raised:
        writer.options(**{"host": daemon.address, **options}).save()
    assert "Traceback" not in str(raised.value)


def test_overwriting_is_refused(spark: Any, daemon: Daemon) -> None:
    push(daemon.address, "app", [b"kept"])
    frame = spark.range(1).selectExpr("'x' as value")
    with pytest.raises(Exception, match="topics are append-only"):
        frame.write.format("logd").mode("overwrite").options(
            host=daemon.address, topic="app"
        ).save()
    assert stored(daemon.address, "app") == [b"kept"]


def test_a_message_that_is_too_large(spark: Any, tmp_path: Path) -> None:
    with running(tmp_path, max_batch_bytes=10_000) as daemon:
        frame = spark.range(1).selectExpr("repeat('x', 20000) as value")
        with pytest.raises(Exception, match="10000"):
            save(frame, daemon, topic="app")


# -- the same work again --------------------------------------------------------------------------


def write_as(daemon: Daemon, producer: str | None, values: list[bytes]) -> None:
    write(
        record_batches(values), SourceWriteOptions(Location(daemon.address), "app", False), producer
    )


def test_the_same_work_is_stored_once(daemon: Daemon) -> None:
    messages = payloads(4, 2000)
    write_as(daemon, "task", messages[:1100])  # as far as an earlier try came
    write_as(daemon, "task", messages)
    write_as(daemon, "task", messages)
    assert stored(daemon.address, "app") == messages
    write_as(daemon, "other", messages[:10])
    assert stored(daemon.address, "app") == messages + messages[:10]


def test_more_batches_than_a_daemon_remembers_of_a_producer(daemon: Daemon) -> None:
    messages = numbered(0, BATCHES_PER_NAME * 2 + 5)
    for _ in range(2):
        with BatchSender(Location(daemon.address), "task", compresses=False) as sender:
            for message in messages:
                sender.send("app", ArrowBody(*encode_body([message]), 1))
    assert stored(daemon.address, "app") == messages


def test_other_rows_are_stored_all_the_same(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """None is missing; those that came before the difference are not stored twice."""
    first = numbered(0, 1000)
    write_as(daemon, "task", first)
    second = [*numbered(0, 500), *numbered(700, 1000), *numbered(500, 700)]
    write_as(daemon, "task", second)
    found = stored(daemon.address, "app")
    assert found[:1000] == first
    assert found[1000:] == second[500:]
    assert "the rows differ from an earlier attempt" in caplog.text


def test_without_a_name_it_is_stored_each_time(daemon: Daemon) -> None:
    write_as(daemon, None, [b"a"])
    write_as(daemon, None, [b"a"])
    assert stored(daemon.address, "app") == [b"a", b"a"]


def test_the_daemon_is_killed_while_a_task_writes(tmp_path: Path) -> None:
    """Ten times, between one record batch and the next: the task goes on, and all is there once."""
    messages = payloads(5, 3000)
    with running(tmp_path, host=lasting_address()) as daemon:
        address = daemon.address

        def with_kills() -> Iterator[pa.RecordBatch]:
            for n, batch in enumerate(record_batches(messages)):
                if n % 3 == 1:
                    daemon.kill()
                    daemon.start()
                yield batch

        write(with_kills(), SourceWriteOptions(Location(address), "app", False), "task")
        assert stored(address, "app") == messages
