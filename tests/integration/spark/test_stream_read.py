"""Streaming reads: where they start, how fast they go, and that a restart misses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from logd import Client
from pyspark_logd.arrow_batches import SCHEMA
from pyspark_logd.errors import LogdFailed
from pyspark_logd.stream_reader import StreamReader
from tests.integration.spark.rows import logd, numbered, payloads, push, push_every_way, times_ms
from tests.integration.spark.streams import HANG_S, Stream, start_query
from tests.support.daemon import Daemon, lasting_address, running, wait_until


class Make(Protocol):
    def __call__(self, address: str, topic: str, **options: object) -> StreamReader: ...


@pytest.fixture
def reader() -> Iterator[Make]:
    """A reader in the test's own process, as Spark has one in the driver's."""
    made = []

    def make(address: str, topic: str, **options: object) -> StreamReader:
        given = {"host": address, "subscribe": topic, **{k: str(v) for k, v in options.items()}}
        made.append(StreamReader(given, SCHEMA))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def read(one: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    """The values of a micro-batch."""
    splits = one.partitions(start, end)
    return [v for split in splits for b in one.read(split) for v in b["value"].to_pylist()]


def test_everything_and_then_what_is_new(spark: Any, daemon: Daemon, tmp_path: Path) -> None:
    messages = payloads(6, 400)
    push_every_way(daemon.address, "app", messages[:250])
    stream = Stream(spark, tmp_path, daemon.address, "app", minPartitions=3)
    assert stream.run() == messages[:250]
    assert stream.run() == messages[:250]
    push_every_way(daemon.address, "app", messages[250:])
    assert stream.run() == messages


def test_a_query_that_goes_on(spark: Any, daemon: Daemon, tmp_path: Path) -> None:
    push(daemon.address, "app", numbered(0, 10))
    stream = Stream(spark, tmp_path, daemon.address, "app")
    query = stream.start(processingTime="0 seconds")
    try:
        for start in (10, 20):
            query.processAllAvailable()
            push(daemon.address, "app", numbered(start, start + 10))
        query.processAllAvailable()
        progress = json.loads(query.lastProgress.json)["sources"][0]
        assert progress["latestOffset"]["topics"] == {"app": 30}
    finally:
        query.stop()
    assert stream.values() == numbered(0, 30)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", range(10)),
        ("latest", range(0)),
        ("4", range(4, 10)),
        ('{"app": 7}', range(7, 10)),
    ],
)
def test_where_it_starts(
    spark: Any, daemon: Daemon, tmp_path: Path, start: str, expected: range
) -> None:
    push(daemon.address, "app", numbered(0, 10))
    stream = Stream(spark, tmp_path, daemon.address, "app", startingOffsets=start)
    query = stream.start(processingTime="0 seconds")
    try:
        query.processAllAvailable()
        push(daemon.address, "app", [b"new"])
        query.processAllAvailable()
    finally:
        query.stop()
    assert stream.values() == [*(b"%d" % n for n in expected), b"new"]


def test_starting_at_a_time(reader: Make, daemon: Daemon) -> None:
    push(daemon.address, "app", [b"0"])
    (before,) = times_ms(daemon.address, "app")
    with Client(daemon.address) as client:
        while True:
            offset = client.push("app", [b"later"]).offset
            *_, last = times_ms(daemon.address, "app")
            if last > before:
                break
    found = reader(daemon.address, "app", startingTimestamp=before + 1).initialOffset()
    assert found["topics"]["app"]["cuts"] == [offset]
    late = reader(daemon.address, "app", startingTimestamp=last + 1).initialOffset()
    assert late["topics"]["app"]["cuts"] == [offset + 1]


def test_the_limit_of_a_micro_batch(spark: Any, daemon: Daemon, tmp_path: Path) -> None:
    push(daemon.address, "app", numbered(0, 25))
    stream = Stream(spark, tmp_path, daemon.address, "app", maxOffsetsPerTrigger=10)
    assert stream.run() == numbered(0, 25)
    assert stream.batch_sizes() == [10, 10, 5]


def test_available_now_leaves_what_comes_later(reader: Make, daemon: Daemon) -> None:
    push(daemon.address, "app", numbered(0, 25))
    push(daemon.address, "web", numbered(0, 3))
    one = reader(daemon.address, "app,web", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    one.prepareForTriggerAvailableNow()
    push(daemon.address, "app", numbered(25, 1000))
    push(daemon.address, "web", numbered(3, 1000))
    at, sizes = one.initialOffset(), []
    while (end := one.latestOffset(at, one.getDefaultReadLimit())) != at:
        sizes.append(sum(s.stop - s.start for s in one.partitions(at, end)))
        at = end
    assert sizes == [10, 10, 8]
    assert {topic: found["cuts"][-1] for topic, found in at["topics"].items()} == {
        "app": 25, "web": 3,
    }  # fmt: skip


def test_a_limit_is_for_all_topics_together(reader: Make, daemon: Daemon) -> None:
    push(daemon.address, "app", numbered(0, 1000))
    push(daemon.address, "web", numbered(0, 3))
    one = reader(daemon.address, "app,web", startingOffsets="earliest")
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(10))["topics"]
    assert (end["app"]["cuts"][-1], end["web"]["cuts"][-1]) == (7, 3)
    end = one.latestOffset(start, ReadAllAvailable())["topics"]
    assert (end["app"]["cuts"][-1], end["web"]["cuts"][-1]) == (1000, 3)


def test_a_restart_before_the_first_commit_with_latest(reader: Make, daemon: Daemon) -> None:
    """Spark asks for the initial offset again, and by then it is another one."""
    push(daemon.address, "app", numbered(0, 10))
    one = reader(daemon.address, "app")
    end = one.latestOffset(_after(one, lambda: push(daemon.address, "app", [b"x"])), None)
    again = reader(daemon.address, "app")
    (split,) = again.partitions(again.initialOffset(), end)
    assert (split.start, split.stop) == (10, 11)


def _after(one: StreamReader, work: Callable[[], None]) -> dict[str, Any]:
    start = one.initialOffset()
    work()
    return start


def test_a_replay_has_the_same_splits(reader: Make, tmp_path: Path) -> None:
    """Also where the daemon has rolled and the options say otherwise by then."""
    with running(tmp_path, partition_bytes=20_000) as daemon:
        push(daemon.address, "app", *[[b"x" * 100] * 50] * 10)
        one = reader(daemon.address, "app", startingOffsets="earliest", minPartitions=4)
        start = one.initialOffset()
        end = one.latestOffset(start, ReadAllAvailable())
        planned = one.partitions(start, end)
        assert len(planned) == 4
        push(daemon.address, "app", *[[b"y" * 1000] * 50] * 10)
        again = reader(daemon.address, "app", startingOffsets="latest", minPartitions=9)
        assert again.partitions(again.initialOffset(), end) == planned


def test_nothing_new_is_the_same_offset(reader: Make, daemon: Daemon) -> None:
    push(daemon.address, "app", numbered(0, 10))
    one = reader(daemon.address, "app")
    start = one.initialOffset()
    assert one.latestOffset(start, ReadAllAvailable()) is start
    assert one.partitions(start, start) == []


def test_topics_that_come_later(spark: Any, daemon: Daemon, tmp_path: Path) -> None:
    push(daemon.address, "app-1", [b"one"])
    stream = Stream(spark, tmp_path, daemon.address, "app")

    def start() -> Any:
        frame = spark.readStream.format("logd").options(
            host=daemon.address, subscribePattern="app-.*", startingOffsets="earliest"
        )
        writer = frame.load().writeStream.format("parquet").option("path", str(stream.output))
        return start_query(writer.option("checkpointLocation", str(stream.checkpoint)))

    query = start()
    query.processAllAvailable()
    push(daemon.address, "app-2", [b"two"])
    query.processAllAvailable()
    query.stop()
    push(daemon.address, "app-3", [b"three"])
    query = start()
    query.processAllAvailable()
    query.stop()
    assert sorted(stream.values()) == [b"one", b"three", b"two"]


def test_a_topic_that_is_gone_is_not_read_again(tmp_path: Path) -> None:
    with running(tmp_path, host=lasting_address()) as daemon:
        push(daemon.address, "app-1", numbered(0, 10))
        push(daemon.address, "app-2", numbered(0, 10))
        given = {"host": daemon.address, "subscribePattern": "app-.", "startingOffsets": "earliest"}
        one = StreamReader(given, SCHEMA)
        end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
        one.stop()
        daemon.stop()
        daemon.topic_dir("app-2").rename(tmp_path / "gone")
        daemon.start()
        push(daemon.address, "app-1", [b"new"])
        after = one.latestOffset(end, ReadAllAvailable())
        assert [(s.topic, s.start, s.stop) for s in one.partitions(end, after)] == [
            ("app-1", 10, 11)
        ]
        one.stop()


def test_a_daemon_that_is_away_is_waited_for(spark: Any, tmp_path: Path) -> None:
    with running(tmp_path, host=lasting_address()) as daemon:
        push(daemon.address, "app", numbered(0, 10))
        stream = Stream(spark, tmp_path, daemon.address, "app")
        query = stream.start(processingTime="0 seconds")
        try:
            query.processAllAvailable()
            for n in range(10, 40, 10):
                daemon.kill()
                daemon.start()
                push(daemon.address, "app", numbered(n, n + 10))
                query.processAllAvailable()
        finally:
            query.stop()
        assert stream.values() == numbered(0, 40)


# -- what is lost ---------------------------------------------------------------------------------


@pytest.fixture
def overtaken(spark: Any, tmp_path: Path) -> Any:
    """A query that has read 10 of 60 messages; 40 of them have expired by now."""
    with running(tmp_path, partition_bytes=1, max_partitions=2) as daemon:
        push(daemon.address, "app", numbered(0, 10))
        stream = Stream(spark, tmp_path, daemon.address, "app")
        assert stream.run() == numbered(0, 10)
        push(daemon.address, "app", *(numbered(n, n + 10) for n in range(10, 60, 10)))
        with Client(daemon.address) as client:
            wait_until(lambda: client.stats("app")["first"] == "40")
        yield stream


def failure(query: Any) -> str:
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(HANG_S)
    return str(raised.value)


def test_retention_overtakes_the_query(overtaken: Stream) -> None:
    text = failure(overtaken.start(availableNow=True))
    assert "topic app has lost offsets 10 to 39: they have expired" in text
    assert "failOnDataLoss" in text
    assert "Traceback" not in text
    assert overtaken.values() == numbered(0, 10)


def test_retention_overtakes_a_query_that_accepts_it(
    overtaken: Stream, warned: Callable[[str], bool]
) -> None:
    overtaken.options["failOnDataLoss"] = "false"
    assert overtaken.run() == [*numbered(0, 10), *numbered(40, 60)]
    assert warned("topic app has lost offsets 10 to 39: they have expired; skipping")


def test_a_planned_micro_batch_expires(reader: Make, tmp_path: Path) -> None:
    """Between the plan and the read: the driver says so, or the tasks read the rest."""
    with running(tmp_path, partition_bytes=1, max_partitions=2) as daemon:
        push(daemon.address, "app", numbered(0, 10), numbered(10, 20))
        one = reader(daemon.address, "app", startingOffsets="earliest")
        start = one.initialOffset()
        end = one.latestOffset(start, ReadAllAvailable())
        push(daemon.address, "app", numbered(20, 30))
        with Client(daemon.address) as client:
            wait_until(lambda: client.stats("app")["first"] == "10")
        with pytest.raises(LogdFailed, match="lost offsets 0 to 9"):
            one.partitions(start, end)
        other = reader(daemon.address, "app", failOnDataLoss="false")
        assert read(other, start, end) == numbered(10, 20)


def test_a_topic_created_again(spark: Any, tmp_path: Path, warned: Callable[[str], bool]) -> None:
    with running(tmp_path, host=lasting_address()) as daemon:
        push(daemon.address, "app", numbered(0, 10))
        stream = Stream(spark, tmp_path, daemon.address, "app")
        assert stream.run() == numbered(0, 10)
        daemon.stop()
        daemon.topic_dir("app").rename(tmp_path / "gone")
        daemon.start()
        push(daemon.address, "app", numbered(100, 103))
        text = failure(stream.start(availableNow=True))
        assert "offsets 0 to 9: the topic was deleted and created again" in text
        stream.options["failOnDataLoss"] = "false"
        query = stream.start(availableNow=True)
        query.awaitTermination(HANG_S)
        assert sorted(stream.values()) == sorted(numbered(0, 10) + numbered(100, 103))
        assert warned("the topic was deleted and created again")


def test_a_suffix_lost_in_a_crash(reader: Make, tmp_path: Path) -> None:
    """The daemon's machine loses power: the newest messages go, others get their offsets."""
    with running(tmp_path, fsync="never", host=lasting_address()) as daemon:
        push(daemon.address, "app", numbered(0, 10))
        kept_bytes = len(daemon.stored("app"))
        push(daemon.address, "app", numbered(10, 20))
        one = reader(daemon.address, "app", startingOffsets="earliest")
        end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
        daemon.kill()
        (file,) = daemon.log_files("app")
        with file.open("r+b") as log:
            log.truncate(kept_bytes)
        daemon.start()
        push(daemon.address, "app", numbered(50, 75))
        with pytest.raises(LogdFailed, match="offsets 10 to 19: they were read, and the machine"):
            one.latestOffset(end, ReadAllAvailable())
        with pytest.raises(LogdFailed, match="offsets 10 to 19: the machine of the daemon crashed"):
            one.partitions({}, end)  # a micro-batch that is run again
        other = reader(daemon.address, "app", failOnDataLoss="false")
        after = other.latestOffset(end, ReadAllAvailable())
        assert read(other, end, after) == numbered(50, 75)


def test_a_checkpoint_of_another_source(reader: Make, daemon: Daemon) -> None:
    push(daemon.address, "app", [b"x"])
    one = reader(daemon.address, "app")
    with pytest.raises(LogdFailed, match="the checkpoint has no offsets of logd"):
        one.latestOffset({"rate": 5}, ReadAllAvailable())


def test_what_is_wrong_is_said_by_the_query(spark: Any, daemon: Daemon) -> None:
    push(daemon.address, "app", [b"x"])
    frame = logd(spark.readStream, daemon.address, "app", endingOffsets="latest").load()
    text = failure(start_query(frame.writeStream.format("noop")))
    assert "the option endingOffsets is not valid here" in text
    frame = logd(spark.readStream, daemon.address, "app").schema("key binary").load()
    text = failure(start_query(frame.writeStream.format("noop")))
    assert "logd has no column key binary; the columns are topic string" in text
