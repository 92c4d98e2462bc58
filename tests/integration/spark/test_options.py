"""Each option is read once; what is wrong with one is said by its name."""

from __future__ import annotations

import pytest

from logd.errors import LogdError
from logd.wire.requests import At
from pyspark_logd.options import Location, any_read_options, read_options, write_options

HERE = {"subscribe": "app"}


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGD_HOST", raising=False)
    batch = read_options(HERE, is_stream=False)
    assert (batch.locations, batch.topics) == ((Location("127.0.0.1:1774"),), ("app",))
    assert (batch.start, batch.stop, batch.fails_on_data_loss) == ("first", "next", True)
    assert read_options(HERE, is_stream=True).start == "next"
    monkeypatch.setenv("LOGD_HOST", "logs:99")
    assert read_options(HERE, is_stream=False).locations == (Location("logs:99"),)
    assert write_options({"topic": "app"}).location == Location("logs:99")


def test_names_in_any_case() -> None:
    """Spark hands them on in lower case."""
    found = read_options({"subscribe": "a, b,a", "STARTINGTIMESTAMP": "5"}, is_stream=True)
    assert (found.topics, found.start) == (("a", "b"), At(5))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscrib": "app"}, "the option subscrib is unknown; options are host, servers"),
        ({}, "set subscribe="),
        ({**HERE, "subscribePattern": ".*"}, "set subscribe="),
        ({"subscribe": " , "}, "subscribe is empty"),
        ({"subscribe": "../etc"}, "a topic is 1 to 128 of"),
        ({"subscribePattern": "("}, r"subscribePattern '\(' is not a regular expression"),
        ({**HERE, "host": "a b"}, "'a b' is not an address"),
        ({**HERE, "host": "a", "servers": "b"}, "host and servers exclude each other"),
        ({**HERE, "servers": "a:1,b:x"}, "'b:x' is not an address"),
        ({**HERE, "dataDir": "/x", "host": "b"}, "host and dataDir exclude each other"),
        ({**HERE, "startingOffsets": "newest"}, "startingOffsets must be a number"),
        ({**HERE, "startingOffsets": "-1"}, "startingOffsets must be a number"),
        ({**HERE, "startingOffsets": "٣"}, "startingOffsets must be a number"),
        ({**HERE, "startingOffsets": "{"}, "startingOffsets must be earliest, latest"),
        ({**HERE, "startingOffsets": '{"app": -3}'}, "startingOffsets must be earliest, latest"),
        ({**HERE, "startingOffsets": '{"app": true}'}, "startingOffsets must be earliest, latest"),
        ({**HERE, "startingOffsets": '{"web": 3}'}, "must have an offset for each of app"),
        ({"subscribe": "a,b", "startingOffsets": "3"}, "for several topics"),
        ({**HERE, "endingOffsets": "1", "endingTimestamp": "1"}, "exclude each other"),
        ({**HERE, "startingTimestamp": "yesterday"}, "startingTimestamp must be a number"),
        ({**HERE, "minPartitions": "1e3"}, "minPartitions must be a number"),
        ({**HERE, "minPartitions": "9999999"}, "minPartitions must be a number from 0 to 100000"),
        ({**HERE, "maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be a number from 1"),
        ({**HERE, "failOnDataLoss": "no"}, "failOnDataLoss must be true or false, not 'no'"),
    ],
)
def test_what_cannot_be_read(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(LogdError, match=sentence):
        any_read_options(options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "a", "subscribe": "b"}, "the option subscribe is not valid here; options are"),
        ({"topic": "a b"}, "a topic is 1 to 128 of"),
        ({"topic": "a", "servers": "b:1,c:1"}, "the option servers is not valid here"),
        ({"topic": "a", "compress": "zstd"}, "compress must be true or false"),
    ],
)
def test_what_cannot_be_written(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(LogdError, match=sentence):
        write_options(options)


def test_what_is_for_batches_or_streams_only() -> None:
    with pytest.raises(LogdError, match="the option endingOffsets is not valid here"):
        read_options({**HERE, "endingOffsets": "latest"}, is_stream=True)
    with pytest.raises(LogdError, match="the option maxOffsetsPerTrigger is not valid here"):
        read_options({**HERE, "maxOffsetsPerTrigger": "5"}, is_stream=False)


def test_what_spark_adds_is_not_unknown() -> None:
    write_options({"topic": "app", "checkpointLocation": "/x", "queryName": "q"})
