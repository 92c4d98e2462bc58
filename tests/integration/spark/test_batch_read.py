"""Batch reads: every message once, whatever its bytes, from where it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from logd import Client
from logd.offline import integrity
from pyspark_logd.arrow_batches import SCHEMA
from pyspark_logd.batch_reader import BatchReader
from pyspark_logd.options import Location, read_options
from pyspark_logd.splits import Split
from tests.integration.spark.rows import (
    logd,
    numbered,
    payloads,
    push,
    push_every_way,
    rows,
    times_ms,
    values,
)
from tests.support.daemon import Daemon, running, wait_until


def splits(address: str, topic: str, **options: object) -> list[Any]:
    given = {"host": address, "subscribe": topic} | {name: str(v) for name, v in options.items()}
    return BatchReader(read_options(given, is_stream=False), SCHEMA).partitions()


def test_bytes_of_every_kind_in_every_encoding(spark: Any, tmp_path: Path) -> None:
    messages = payloads(1, 500)
    with running(tmp_path, partition_bytes=500_000) as daemon:
        push_every_way(daemon.address, "app", messages)
        frame = logd(spark.read, daemon.address, "app", minPartitions=3).load()
        found = sorted(frame.collect(), key=lambda row: row.offset)
        assert [row.value for row in found] == messages
        assert [row.offset for row in found] == list(range(len(messages)))
        assert {row.topic for row in found} == {"app"}
        times = [datetime.fromtimestamp(ms / 1000, UTC) for ms in times_ms(daemon.address, "app")]
        assert [row.timestamp.replace(tzinfo=UTC) for row in found] == times
        assert len(daemon.log_files("app")) > 1


def test_columns(spark: Any, daemon: Daemon) -> None:
    push(daemon.address, "app", [b"hello"])
    frame = logd(spark.read, daemon.address, "app").load()
    assert frame.schema.simpleString() == (
        "struct<topic:string,offset:bigint,timestamp:timestamp,value:binary>"
    )


def test_a_schema_chooses_columns(spark: Any, daemon: Daemon) -> None:
    push(daemon.address, "app", [b"hello"])
    frame = logd(spark.read, daemon.address, "app").schema("value binary, offset bigint").load()
    assert frame.collect() == [(b"hello", 0)]


def test_an_empty_topic_and_an_empty_range(spark: Any, daemon: Daemon) -> None:
    push(daemon.address, "app", [b"hello"])
    frame = logd(spark.read, daemon.address, "app", startingOffsets="latest").load()
    assert frame.count() == 0
    frame = logd(spark.read, daemon.address, "app", startingOffsets="1", endingOffsets="0").load()
    assert frame.count() == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(20)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(20)),
        ({"startingOffsets": "7"}, range(7, 20)),
        ({"endingOffsets": "7"}, range(7)),
        ({"startingOffsets": '{"app": 3}', "endingOffsets": '{"app": 13}'}, range(3, 13)),
        ({"startingOffsets": '{"app": -2}', "endingOffsets": '{"app": -1}'}, range(20)),
        ({"startingOffsets": '{"app": "latest"}'}, range(0)),
        ({"startingOffsets": "12", "endingOffsets": "12"}, range(0)),
        ({"maxRecordsPerPartition": 1}, range(20)),
        ({"minPartitions": 1000}, range(20)),
    ],
)
def test_offsets(spark: Any, daemon: Daemon, options: dict[str, object], expected: range) -> None:
    push(daemon.address, "app", numbered(0, 5), numbered(5, 12), numbered(12, 20))
    frame = logd(spark.read, daemon.address, "app", **options).load()
    assert rows(frame) == [(n, b"%d" % n) for n in expected]


def test_times(spark: Any, daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        for n in range(4):
            client.push("app", [b"%d" % n])
            while client.tail("app", 1).data.split()[4] == _now(client, "app"):
                client.push("other", [b"tick"])  # until the clock has moved on
    times = list(times_ms(daemon.address, "app"))
    assert len({*times}) == 4
    for first in range(4):
        options = {"startingTimestamp": times[first], "endingTimestamp": times[3]}
        frame = logd(spark.read, daemon.address, "app", **options).load()
        assert values(frame) == numbered(first, 3)
    late = logd(spark.read, daemon.address, "app", startingTimestamp=times[3] + 1).load()
    assert values(late) == []


def _now(client: Client, topic: str) -> bytes:
    """The daemon's clock, in the form that a header has it."""
    client.push("clock", [b"tick"])
    return bytes(client.tail("clock", 1).data.split()[4])


def test_several_topics_and_a_pattern(spark: Any, daemon: Daemon) -> None:
    for topic in ("app-1", "app-2", "web"):
        push(daemon.address, topic, [topic.encode()])
    frame = logd(spark.read, daemon.address, "web, app-2").load()
    assert {(row.topic, row.value) for row in frame.collect()} == {
        ("web", b"web"), ("app-2", b"app-2"),
    }  # fmt: skip
    reader = spark.read.format("logd").options(host=daemon.address, subscribePattern="app-.")
    assert {row.topic for row in reader.load().collect()} == {"app-1", "app-2"}


def test_several_daemons(spark: Any, tmp_path: Path) -> None:
    with running(tmp_path / "a") as one, running(tmp_path / "b") as other:
        push(one.address, "app", numbered(0, 3))
        push(other.address, "web", numbered(3, 5))
        servers = f"{one.address},{other.address}"
        reader = spark.read.format("logd").options(servers=servers, subscribe="app,web")
        assert {row.value for row in reader.load().collect()} == {*numbered(0, 5)}
        push(other.address, "app", [b"x"])
        with pytest.raises(Exception, match=r"topic app exists at .* and at .*; read two"):
            reader.load()


def test_files_of_a_daemon(spark: Any, tmp_path: Path) -> None:
    messages = payloads(2, 300)
    with running(tmp_path, partition_bytes=300_000) as daemon:
        push_every_way(daemon.address, "app", messages)
        reader = spark.read.format("logd").options(
            dataDir=str(daemon.data_dir), subscribe="app", minPartitions=4
        )
        assert values(reader.load()) == messages
        daemon.stop()
        assert values(reader.load()) == messages
        assert values(reader.option("startingOffsets", "250").load()) == messages[250:]


# -- splits -------------------------------------------------------------------------------------


def test_splits_of_even_messages_are_even(tmp_path: Path) -> None:
    with running(tmp_path, partition_bytes=1_000_000) as daemon:
        for _ in range(100):
            push(daemon.address, "app", [b"x" * 99] * 500)
        found = splits(daemon.address, "app", minPartitions=7)
        sizes = [split.stop - split.start for split in found]
        assert len(sizes) == 7
        assert max(sizes) <= 1.1 * min(sizes)
        assert found[0].start == 0
        assert found[-1].stop == 50_000
        assert all(one.stop == other.start for one, other in pairwise(found))


def test_splits_follow_bytes_not_messages(tmp_path: Path) -> None:
    with running(tmp_path, partition_bytes=100_000) as daemon:
        push(daemon.address, "app", *[[b"x" * 1000] * 100] * 10)
        push(daemon.address, "app", *[[b"x" * 9] * 1000] * 10)
        small, large = splits(daemon.address, "app", minPartitions=2)
        assert (small.start, large.stop) == (0, 11_000)
        assert 450 < small.stop < 650  # of 1,000 large ones: half of the bytes


def test_no_split_has_more_records_than_allowed(daemon: Daemon) -> None:
    push(daemon.address, "app", [b"x" * 1000] * 10, [b""] * 990)
    found = splits(daemon.address, "app", maxRecordsPerPartition=100)
    assert max(split.stop - split.start for split in found) == 100
    assert sum(split.stop - split.start for split in found) == 1000


# -- filters ------------------------------------------------------------------------------------


@pytest.fixture
def pushdown(spark: Any) -> Any:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("offset >= 9000 and offset < 9010", range(9000, 9010)),
        ("offset = 9999", range(9999, 10_000)),
        ("offset > 9998 and length(value) > 3", range(9999, 10_000)),
        ("offset <= 1 or offset > 9998", [0, 1, 9999]),
        ("offset < 0", []),
    ],
)
@pytest.mark.usefixtures("pushdown")
def test_filters_on_offsets(
    spark: Any, daemon: Daemon, where: str, expected: range | list[int]
) -> None:
    push(daemon.address, "app", *(numbered(n, n + 100) for n in range(0, 10_000, 100)))
    before = _read_bytes(daemon)
    frame = logd(spark.read, daemon.address, "app", pushFilters="true").load().filter(where)
    assert [offset for offset, _ in rows(frame)] == list(expected)
    size = len(daemon.stored("app"))
    if " or " not in where:  # which Spark does not hand on
        assert _read_bytes(daemon) - before < size / 10
    else:
        assert _read_bytes(daemon) - before >= size


@pytest.mark.usefixtures("pushdown")
def test_filters_on_times(spark: Any, daemon: Daemon) -> None:
    push(daemon.address, "app", numbered(0, 2))
    (first, *_) = times_ms(daemon.address, "app")
    frame = logd(spark.read, daemon.address, "app", pushFilters="true").load()
    at = datetime.fromtimestamp(first / 1000, UTC)
    for column, time, expected in [
        (frame.timestamp >= at, at, 2),
        (frame.timestamp > at, at, 0),
        (frame.timestamp <= at, at, 2),
        (frame.timestamp < at, at, 0),
        (frame.timestamp == at, at, 2),
        (frame.timestamp < at + timedelta(microseconds=1), at, 2),
    ]:
        assert frame.filter(column).count() == expected, (column, time)


def test_filters_need_the_session_to_allow_them(spark: Any, daemon: Daemon) -> None:
    push(daemon.address, "app", [b"x"])
    frame = logd(spark.read, daemon.address, "app", pushFilters="true").load()
    with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        frame.count()


def _read_bytes(daemon: Daemon) -> int:
    with Client(daemon.address) as client:
        return int(client.stats()["read_bytes"])


# -- what is missing ----------------------------------------------------------------------------


@pytest.fixture
def with_gap(tmp_path: Path) -> Any:
    """Ten batches of ten, the fourth of which was lost, and that accepted."""
    with running(tmp_path, partition_bytes=1) as daemon:
        push(daemon.address, "app", *(numbered(n, n + 10) for n in range(0, 100, 10)))
        daemon.stop()
        file = daemon.log_files("app")[3]
        data = bytearray(file.read_bytes())
        data[-2] ^= 1
        file.write_bytes(data)
        integrity.repair(daemon.topic_dir("app"), accept_loss=True)
        yield daemon.start()


def test_a_gap_is_an_error_that_names_it(spark: Any, with_gap: Daemon) -> None:
    frame = logd(spark.read, with_gap.address, "app").load()
    with pytest.raises(Exception, match=r"topic app has lost offsets 30 to 39: .*failOnDataLoss"):
        frame.count()
    before = logd(spark.read, with_gap.address, "app", endingOffsets="30").load()
    assert values(before) == numbered(0, 30)


def test_a_gap_is_a_warning_where_that_is_wanted(
    spark: Any, with_gap: Daemon, warned: Callable[[str], bool]
) -> None:
    options = {"failOnDataLoss": "false", "startingOffsets": 5, "endingOffsets": 95}
    frame = logd(spark.read, with_gap.address, "app", **options).load()
    assert rows(frame) == [(n, b"%d" % n) for n in (*range(5, 30), *range(40, 95))]
    assert warned("has lost offsets 30 to 39: the daemon lost them on its disk")


def test_offsets_that_expired_or_are_not_there_yet(
    spark: Any, tmp_path: Path, warned: Callable[[str], bool]
) -> None:
    with running(tmp_path, partition_bytes=1, max_partitions=2) as daemon:
        push(daemon.address, "app", *(numbered(n, n + 10) for n in range(0, 50, 10)))
        with Client(daemon.address) as client:
            wait_until(lambda: client.stats("app")["first"] == "30")
        for options, lost in [
            ({"startingOffsets": "7"}, "7 to 29: they have expired"),
            ({"endingOffsets": "60"}, "50 to 59: the topic ends at 50"),
            ({"startingOffsets": "70", "endingOffsets": "80"}, "70 to 79: the topic ends at 50"),
        ]:
            with pytest.raises(Exception, match=f"topic app has lost offsets {lost}"):
                logd(spark.read, daemon.address, "app", **options).load().count()
        rest = logd(
            spark.read, daemon.address, "app", failOnDataLoss="false",
            startingOffsets="7", endingOffsets="60",
        ).load()  # fmt: skip
        assert values(rest) == numbered(30, 50)
        assert warned("has lost offsets 7 to 29")
        assert warned("has lost offsets 50 to 59")


def test_damage_is_an_error_not_other_messages(spark: Any, daemon: Daemon) -> None:
    push(daemon.address, "app", numbered(0, 100))
    (file,) = daemon.log_files("app")
    data = file.read_bytes()
    file.write_bytes(data[:-50] + bytes([data[-50] ^ 1]) + data[-49:])
    with pytest.raises(Exception, match="a body that does not match its sum"):
        logd(spark.read, daemon.address, "app").load().count()


def test_a_split_of_a_topic_created_again(spark: Any, tmp_path: Path) -> None:
    """Planned on one topic and read from another of the same name: nothing is mixed up."""
    with running(tmp_path / "a") as one, running(tmp_path / "b") as other:
        push(one.address, "app", numbered(0, 10))
        push(other.address, "app", [b"another"] * 10)
        (split,) = splits(one.address, "app")
        moved = Split(
            Location(other.address),
            *(getattr(split, n) for n in ("topic", "start", "stop", "identity")),
        )
        options = read_options({"host": one.address, "subscribe": "app"}, is_stream=False)
        with pytest.raises(
            Exception, match="offsets 0 to 9: the topic was deleted and created again"
        ):
            list(BatchReader(options, StructType([SCHEMA["value"]])).read(moved))
