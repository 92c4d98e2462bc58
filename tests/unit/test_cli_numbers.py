"""The pure parts of the live view and the load tool: numbers, rates, latencies, shares of work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.bench import Latencies, batches_of
from cli.output.number_text import bytes_text, count_text, duration_text
from cli.output.stats_rates import StatsSample, TopicRate, busiest, rates_between
from cli.read import expected_messages
from cli.stats import with_seconds
from logd.wire.commands import TopicInfo
from logd.wire.requests import At
from logd.wire.text import counted


def test_one_is_said_as_one() -> None:
    assert [counted(n, "file") for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
    assert [counted(n, "reply", "replies") for n in (1, 5)] == ["1 reply", "5 replies"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (0.5, "0.50"),
        (12.345, "12.3"),
        (999, "999"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (1000, "1k"),
        (1234, "1.23k"),
        (56_789, "56.8k"),
        (123_456_789, "123M"),
        (10**19, "10E"),
        (10**22, "10000E"),
    ],
)
def test_counts(value: float, text: str) -> None:
    assert count_text(value) == text


def test_bytes_have_a_unit() -> None:
    assert [bytes_text(n) for n in (0, 999, 65_536, 10**9)] == ["0 B", "999 B", "65.5 kB", "1 GB"]


@given(st.floats(0, 1e21))
def test_a_number_is_short(value: float) -> None:
    assert len(count_text(value)) <= 6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m 0s"), (3661, "1h 1m"), (93_784, "1d 2h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


# -- rates --------------------------------------------------------------------------------------


def sample(at_s: float, stored: int, *topics: TopicInfo) -> StatsSample:
    counters = {"stored_messages": stored, "stored_bytes": 10 * stored, "read_bytes": 0}
    return StatsSample(at_s, {k: str(v) for k, v in counters.items()}, {t.topic: t for t in topics})


def test_rates_are_what_lies_between_two_samples() -> None:
    before = sample(10.0, 100, TopicInfo("app", 0, 40, 400, 1))
    now = sample(12.0, 160, TopicInfo("app", 0, 100, 1000, 1), TopicInfo("new", 0, 8, 80, 1))
    rates = rates_between(before, now)
    assert rates[:4] == (2.0, 30.0, 300.0, 0.0)
    assert rates.topics == [
        TopicRate("app", 0, 100, 1000, 30.0, 300.0),
        TopicRate("new", 0, 8, 80, 4.0, 40.0),
    ]


def test_no_rate_of_bytes_where_a_partition_has_gone() -> None:
    before, now = TopicInfo("app", 0, 40, 400, 2), TopicInfo("app", 20, 50, 300, 1)
    (rate,) = rates_between(sample(0, 0, before), sample(1, 0, now)).topics
    assert (rate.messages_per_s, rate.bytes_per_s) == (10.0, None)


def test_no_rate_where_another_daemon_counts_from_0() -> None:
    rates = rates_between(sample(0, 100), sample(1, 5))
    assert (rates.messages_per_s, rates.bytes_per_s) == (None, None)


def test_the_busiest_are_shown_by_name() -> None:
    topics = [TopicRate(name, 0, 0, 0, rate, 0.0) for name, rate in [("c", 5), ("a", 0), ("b", 9)]]
    assert [topic.topic for topic in busiest(topics, 2)] == ["b", "c"]


@pytest.mark.parametrize(
    ("words", "with_default"),
    [
        ([], []),
        (["app"], ["app"]),
        (["--watch"], ["--watch", "1"]),
        (["--watch", "5"], ["--watch", "5"]),
        (["-w", "0.5", "app"], ["-w", "0.5", "app"]),
        (["--watch", "app"], ["--watch", "1", "app"]),
        (["--watch", "-o", "json"], ["--watch", "1", "-o", "json"]),
        (["--", "--watch"], ["--", "--watch"]),
    ],
)
def test_watch_with_and_without_a_number(words: list[str], with_default: list[str]) -> None:
    assert with_seconds(words) == with_default


# -- the load tool ------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.integers(1, 700), st.integers(1, 20))
def test_the_shares_add_up(messages: int, per_batch: int, connections: int) -> None:
    shares = batches_of(messages, per_batch, connections)
    assert len(shares) == connections
    assert sum(batches * of for share in shares for batches, of in share) == messages
    assert all(0 < of <= per_batch for share in shares for _, of in share)


def test_percentiles() -> None:
    latencies = Latencies()
    for n in range(1, 1001):
        latencies.add(n / 1000)
    assert latencies.percentiles_ms() == {
        "p50": 500, "p90": 900, "p99": 990, "p99.9": 999, "p100": 1000,
    }  # fmt: skip
    assert Latencies().percentiles_ms()["p99"] == 0


@given(st.lists(st.floats(1e-6, 1e3), min_size=1))
def test_the_longest_is_kept_to_three_digits(seconds: list[float]) -> None:
    latencies = Latencies()
    for one in seconds:
        latencies.add(one)
    assert latencies.percentiles_ms()["p100"] == pytest.approx(max(seconds) * 1000, 0.006, 1e-4)


# -- how long a read will be --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "limit", "until", "messages"),
    [
        ({"start": "first"}, None, None, 90),
        ({"start": "next"}, None, None, 0),
        ({"start": 60}, None, None, 40),
        ({"start": 2}, None, None, 90),
        ({"start": 60}, 7, None, 7),
        ({"start": 60}, None, 65, 5),
        ({"start": 60}, None, 20, 0),
        ({"start": 60}, None, 900, 40),
        ({"tail": 4}, None, None, 4),
        ({"tail": 400}, None, None, 90),
        ({"start": At(5)}, None, None, 90),
    ],
)
def test_expected_messages(
    place: dict[str, Any], limit: int | None, until: int | None, messages: int
) -> None:
    bounds = place | {"limit": limit, "until": until}
    assert expected_messages(TopicInfo("app", 10, 100, 0, 1), bounds) == messages
