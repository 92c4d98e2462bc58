"""Which partitions have expired: a table of decisions, and a slow model beside the quick one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from logd.storage.retention import RetainedPartition, RetentionLimits

NOW_MS = 1_000_000
S = 1000


def kept(*sizes_and_ages: tuple[int, int]) -> list[RetainedPartition]:
    """Partitions, oldest first, by size and by the seconds since their newest message."""
    return [RetainedPartition(size, NOW_MS - age_s * S) for size, age_s in sizes_and_ages]


THREE = kept((100, 30), (200, 20), (50, 10))
ONE = kept((1000, 999))

TABLE: list[tuple[str, RetentionLimits, list[RetainedPartition], int]] = [
    ("no limit, nothing expires", RetentionLimits(), THREE, 0),
    ("no partitions", RetentionLimits(1, 1, 1.0), [], 0),
    ("as many as allowed", RetentionLimits(max_partitions=3), THREE, 0),
    ("one too many", RetentionLimits(max_partitions=2), THREE, 1),
    ("two too many", RetentionLimits(max_partitions=1), THREE, 2),
    ("more allowed than there are", RetentionLimits(max_partitions=9), THREE, 0),
    ("the active one never expires by count", RetentionLimits(max_partitions=1), ONE, 0),
    ("exactly as many bytes as allowed", RetentionLimits(max_bytes=350), THREE, 0),
    ("one byte too many takes the oldest", RetentionLimits(max_bytes=349), THREE, 1),
    ("until the rest fits", RetentionLimits(max_bytes=250), THREE, 1),
    ("and not one more", RetentionLimits(max_bytes=249), THREE, 2),
    ("the active one never expires by size", RetentionLimits(max_bytes=1), THREE, 2),
    ("not even alone", RetentionLimits(max_bytes=1), ONE, 0),
    ("exactly as old as allowed", RetentionLimits(max_age_s=30), THREE, 0),
    ("older than allowed", RetentionLimits(max_age_s=29.999), THREE, 1),
    ("by the newest message of each", RetentionLimits(max_age_s=15), THREE, 2),
    ("the active one never expires by age", RetentionLimits(max_age_s=0.001), THREE, 2),
    ("nor alone", RetentionLimits(max_age_s=0.001), ONE, 0),
    ("the strictest counts: count", RetentionLimits(1, 350, 30), THREE, 2),
    ("the strictest counts: bytes", RetentionLimits(3, 249, 30), THREE, 2),
    ("the strictest counts: age", RetentionLimits(3, 350, 15), THREE, 2),
    ("bytes freed by count count", RetentionLimits(2, 250, 0), THREE, 1),
    ("an empty active one", RetentionLimits(max_bytes=299), kept((100, 9), (200, 8), (0, 0)), 1),
    ("empty ones between", RetentionLimits(max_bytes=1), kept((0, 9), (2, 8), (0, 0)), 2),
    ("a clock that went back", RetentionLimits(max_age_s=5), kept((1, -50), (1, -60), (1, -70)), 0),
    ("what is young stops it, though what follows is old", RetentionLimits(max_age_s=15),
     kept((1, 10), (1, 20), (1, 0)), 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "partitions", "expired"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_table(limits: RetentionLimits, partitions: list[RetainedPartition], expired: int) -> None:
    assert limits.expired(partitions, NOW_MS) == expired


LIMITS = some.builds(
    RetentionLimits,
    some.integers(0, 5),
    some.integers(0, 500),
    some.sampled_from([0.0, 0.5, 5.0, 25.0]),
)
PARTITIONS = some.lists(
    some.builds(RetainedPartition, some.integers(0, 200), some.integers(0, 30_000)), max_size=8
).map(lambda parts: sorted(parts, key=lambda part: part.newest_ms))


@given(LIMITS, PARTITIONS)
def test_the_oldest_go_one_by_one_while_a_limit_is_broken(
    limits: RetentionLimits, partitions: list[RetainedPartition]
) -> None:
    now_ms = 30_000

    def is_broken(left: list[RetainedPartition]) -> bool:
        too_many = limits.max_partitions and len(left) > limits.max_partitions
        too_big = limits.max_bytes and sum(part.size for part in left) > limits.max_bytes
        too_old = limits.max_age_s and now_ms - left[0].newest_ms > limits.max_age_s * S
        return bool(too_many or too_big or too_old)

    left = list(partitions)
    while len(left) > 1 and is_broken(left):
        del left[0]
    assert limits.expired(partitions, now_ms) == len(partitions) - len(left)


@given(LIMITS, PARTITIONS)
def test_what_is_left_has_nothing_more_to_give(
    limits: RetentionLimits, partitions: list[RetainedPartition]
) -> None:
    expired = limits.expired(partitions, 30_000)
    assert limits.expired(partitions[expired:], 30_000) == 0
    assert expired < len(partitions) or not partitions


def test_any_limit_counts() -> None:
    assert not RetentionLimits().any()
    for limits in (RetentionLimits(1), RetentionLimits(0, 1), RetentionLimits(0, 0, 0.1)):
        assert limits.any()
