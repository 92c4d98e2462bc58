"""Any messages come back equal: through Writer, disk and Reader, over rolls."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logd import Reader, Writer
from tests.support.daemon import Daemon, messages, running

MESSAGE = st.binary(max_size=50) | st.sampled_from(
    [b"", b"\n", b"\0", b"\r\n", b"a\nb", b"\r\nPUSH app 2\r\nx\n", b"BATCH 0 1 2 ", b"x" * 5000]
)
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=30)
HOW = st.sampled_from(["written", "compressed", "one by one"])
several = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def write(server: Daemon, some: list[bytes], how: str) -> int:
    """Returns the offset of the first of them."""
    batch_bytes = 1 if how == "one by one" else 200
    compress = how == "compressed"
    with Writer(server.address, "app", batch_bytes=batch_bytes, compress=compress) as writer:
        for message in some:
            writer.write(message)
    assert writer.first_offset is not None
    assert writer.acknowledged == len(some)
    return writer.first_offset


def read(
    server: Daemon, start: int = 0, limit: int | None = None, read_bytes: int = 500
) -> list[bytes]:
    with Reader(server.address, "app", start=start, limit=limit, read_bytes=read_bytes) as reader:
        got = list(reader)
    assert [message.offset for message in got] == list(range(start, start + len(got)))
    return [message.value for message in got]


@pytest.mark.parametrize("partition_bytes", [1, 2, 60, 100, 150, 299, 1 << 20])
def test_across_rolls(tmp_path: Path, partition_bytes: int) -> None:
    """One daemon for all examples: they are written one behind the other."""
    with running(tmp_path, partition_bytes=partition_bytes, fsync="never") as server:
        everything: list[bytes] = []

        @given(MESSAGES, HOW)
        @settings(several, max_examples=40)
        def check(some: list[bytes], how: str) -> None:
            assert write(server, some, how) == len(everything)
            everything.extend(some)
            assert read(server, len(everything) - len(some)) == some

        check()
        assert read(server, read_bytes=1 << 20) == everything
        assert messages(server.stored("app")) == everything
        middle = len(everything) // 2
        assert read(server, middle, 10) == everything[middle : middle + 10]
