"""Messages of a batch, as the C module makes them and as Python does."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest

from logd.batch import (
    LINES,
    LINES_ZSTD,
    SIZED,
    SIZED_ZSTD,
    ScannedBatch,
    body_sum,
    compress,
    encode_header,
    scan,
)
from logd.errors import DamagedBatch
from logd.wire import read_state
from logd.wire.commands import Batches
from logd.wire.read_state import Batch, Message, messages_of, split

label: Any = vars(read_state)["_label"]

OFFSETS = (0, 5, 1 << 30, (1 << 63) - 4)


@pytest.fixture(params=["compiled", "python"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(read_state, "_label", None)
    elif label is None:
        pytest.skip("there was no compiler where logd was installed")


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("offset", OFFSETS)
def test_they_are_as_if_made_one_by_one(offset: int) -> None:
    values = [b"", b"one", b"x" * 1000]
    made = list(messages_of(Batch(offset, 1_700_000_000_000, values)))
    wanted = [Message(offset + i, 1_700_000_000_000, value) for i, value in enumerate(values)]
    assert made == wanted
    assert [type(message) for message in made] == [Message] * 3
    assert [*map(hash, made)] == [*map(hash, wanted)]
    assert {*made} == {*wanted}
    assert made[1].value == b"one"
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == wanted
    assert made[1]._replace(value=b"other") == (offset + 1, 1_700_000_000_000, b"other")


@pytest.mark.usefixtures("form")
def test_the_collector_can_run_while_they_come_and_go() -> None:
    kept = []
    for turn in range(50):
        made = list(messages_of(Batch(turn, turn, [b"%d" % i for i in range(100)])))
        kept.append(made[turn])
        gc.collect(0)
    del made
    gc.collect()
    assert kept == [(2 * turn, turn, b"%d" % turn) for turn in range(50)]


class Odd(tuple[object, ...]):
    """Has a dict, which the C module would have to fill."""


def test_only_plain_tuples_are_made() -> None:
    if label is None:
        pytest.skip("there was no compiler where logd was installed")
    for kind in (Odd, int, bytes):
        with pytest.raises(TypeError):
            label(kind, 0, 0, [b"x"])


VALUES = [b"one", b"", b"three", b"4"]
BODIES = {
    LINES: b"one\n\nthree\n4\n",
    SIZED: b"3 0 5 1\nonethree4",
    LINES_ZSTD: compress(b"one\n\nthree\n4\n", LINES)[0],
    SIZED_ZSTD: compress(b"3 0 5 1\nonethree4", SIZED)[0],
}


def found(enc: str, body: bytes, messages: int = 4) -> ScannedBatch:
    data = encode_header(10, messages, len(body), 5, enc, body_sum(body)) + body
    (one,) = scan(lambda at, size: data[at : at + size], 0, len(data))
    return one


@pytest.mark.parametrize("enc", BODIES)
def test_the_messages_whatever_is_wanted_of_a_batch(enc: str) -> None:
    batch = found(enc, BODIES[enc])
    for start in range(10, 14):
        for stop in range(start + 1, 15):
            wanted = VALUES[start - 10 : stop - 10]
            assert split(batch, start, stop).messages == wanted


@pytest.mark.parametrize("body", [b"one\ntwo\n", b"one\n\nthree\n4", b"\n" * 5])
def test_lines_of_another_count_are_damage(body: bytes) -> None:
    with pytest.raises(DamagedBatch):
        split(found(LINES, body), 10, 14)


@pytest.mark.parametrize("enc", [LINES_ZSTD, SIZED_ZSTD])
def test_a_batch_of_very_many_messages_comes_in_parts(enc: str) -> None:
    """A reader that holds all of them at once would need gigabytes."""
    many = (1 << 20) + 5
    content = b"\n" * many if enc == LINES_ZSTD else b"0" + b" 0" * (many - 1) + b"\n"
    body = compress(content, enc.removesuffix("+zstd"))[0]
    data = encode_header(10, many, len(body), 5, enc, body_sum(body)) + body
    parts = read_state.ReadState("app", limit=1000).cut(Batches(20, many - 10, data))
    offset = 20
    for part in parts:
        assert part.offset == offset
        assert len(part.messages) < 1000
        offset = part.next
    assert offset == 1020
