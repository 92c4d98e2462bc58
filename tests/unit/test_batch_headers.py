"""The header of a batch in C and in Python: the same bytes, and the same errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logd.batch import MAX_NUMBER, parse_header
from tests.unit.compiled import source

_native = pytest.importorskip("logd._native", reason="no compiler where this was installed")
python = source("batch", native=False)

NUMBERS = st.integers(0, MAX_NUMBER)
IDS = st.sampled_from(["-", "p:0", f"{'a' * 64}:{MAX_NUMBER}"])
MORE = st.lists(st.from_regex(r"[!-~]{1,100}", fullmatch=True), max_size=6)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["lines", "sized+zstd"]), IDS, MORE)
def test_both_forms_write_the_same(
    offset: int, messages: int, size: int, time_ms: int, enc: str, id_: str, more: list[str]
) -> None:
    fields = (offset, messages, size, time_ms, enc, "0123456789abcdef", id_)
    rest = "".join(f"{word} " for word in more)
    assert _native.header(*fields, rest) == python.encode_header(*fields, rest)
    assert _native.header(*fields) == python.encode_header(*fields)
    assert _native.header(*fields[:6]) == python.encode_header(*fields[:6])


def test_what_is_written_is_read() -> None:
    header = parse_header(_native.header(1, 2, 3, 4, "lines", "0" * 16, "p:5"))
    assert header is not None
    assert header[:7] == (1, 2, 3, 4, "lines", "0" * 16, "p:5")


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (1, 2, 3, 4, "lines"),
        (1, 2, 3, 4, "lines", "0" * 16, "-", "", "more"),
        (-1, 2, 3, 4, "lines", "0" * 16),
        (1 << 64, 2, 3, 4, "lines", "0" * 16),
        (1.0, 2, 3, 4, "lines", "0" * 16),
        (1, 2, 3, 4, b"lines", "0" * 16),
        (1, 2, 3, 4, "lines", "0" * 16, "-", "x" * 1000 + " "),
    ],
)
def test_what_is_no_header_raises(fields: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        _native.header(*fields)
