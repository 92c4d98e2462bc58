"""Pushes of one message, found without the parser: in C and in Python."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.wire import requests
from tests.unit.compiled import source

PREFIX = b"PUSH app "
MOST, ROOM = 30, 70


@pytest.fixture(scope="module")
def plain() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "logd._native", None)
        return source("wire.requests")


@pytest.fixture(params=["compiled", "python"])
def form(request: pytest.FixtureRequest, plain: ModuleType) -> ModuleType:
    if request.param == "python":
        return plain
    pytest.importorskip("logd._native", reason="no compiler where this was installed")
    return requests


def push(body: bytes, size: int | None = None) -> bytes:
    return b"PUSH app %d\r\n%s" % (len(body) if size is None else size, body)


FIVE = push(b"1234\n")
WHOLE: list[tuple[bytes, list[bytes]]] = [
    (b"", []),
    (FIVE, [b"1234\n"]),
    (FIVE + push(b"\n") + push(b"12\n"), [b"1234\n", b"\n", b"12\n"]),
    (push(b"x" * 29 + b"\n"), [b"x" * 29 + b"\n"]),
    (b"PUSH app 2\n1\nPUSH app 002\r\n2\n", [b"1\n", b"2\n"]),
]
BEHIND = [
    push(b"x" * 30 + b"\n"),  # larger than one may be
    push(b"12\n4\n"),  # two messages
    push(b"12345"),  # no line end
    push(b""),
    FIVE[:-1],  # not all of it
    FIVE[:10],
    b"PUSH app 5 enc=lines\r\n1234\n",
    b"PUSH app\r\n1234\n",
    b"PUSH web 5\r\n1234\n",
    b"push app 5\r\n1234\n",
    b"PUSH app 00000000000000000005\r\n1234\n",  # 20 digits
    b"PUSH app 99999999999999999999\r\n",
    b"PUSH app x\r\n",
    b"PING\r\n",
    b"\r\n",
]


@pytest.mark.parametrize("behind", [b"", *BEHIND])
@pytest.mark.parametrize(("data", "bodies"), WHOLE)
def test_a_run_ends_before_what_is_none_of_it(
    form: ModuleType, data: bytes, bodies: list[bytes], behind: bytes
) -> None:
    ahead = b"PING\r\n"
    found = form.pushes(ahead + data + behind, len(ahead), PREFIX, MOST, ROOM)
    assert found == (bodies, len(ahead + data))


@pytest.mark.parametrize("behind", [b"", *BEHIND])
@pytest.mark.parametrize(("data", "bodies"), WHOLE)
def test_one_is_all_there_is(
    form: ModuleType, data: bytes, bodies: list[bytes], behind: bytes
) -> None:
    found = form.one_push(data + behind, PREFIX, MOST)
    assert found == (bodies[0] if len(bodies) == 1 and not behind else None)


def test_a_run_has_so_much_room_and_no_more(form: ModuleType) -> None:
    data = push(b"x" * 19 + b"\n") * 5
    bodies, end = form.pushes(data, 0, PREFIX, MOST, ROOM)
    assert (len(bodies), end) == (3, len(data) // 5 * 3)
    assert form.pushes(data, end, PREFIX, MOST, ROOM)[1] == len(data)
    assert form.pushes(data, len(data), PREFIX, MOST, ROOM) == ([], len(data))


PIECES = st.one_of(
    st.sampled_from([FIVE, *BEHIND]),
    st.binary(max_size=6),
    st.binary(max_size=35).map(lambda body: push(body.replace(b"\n", b"x") + b"\n")),
    st.tuples(st.sampled_from([b"a\n", b"\n", b"a\nb\n"]), st.integers(0, 4)).map(
        lambda given: push(*given)
    ),
)


@given(st.lists(PIECES, max_size=8).map(b"".join), st.integers(0, 20))
@settings(max_examples=1000)
def test_both_forms_find_the_same(plain: ModuleType, data: bytes, at: int) -> None:
    at = min(at, len(data))
    assert requests.pushes(data, at, PREFIX, MOST, ROOM) == plain.pushes(
        data, at, PREFIX, MOST, ROOM
    )
    assert requests.one_push(data, PREFIX, MOST) == plain.one_push(data, PREFIX, MOST)


@pytest.mark.parametrize("at", [-1, 20])
def test_nothing_is_read_outside_its_data(at: int) -> None:
    lines = pytest.importorskip("logd._native", reason="no compiler where this was installed")
    with pytest.raises(ValueError, match="inside"):
        lines.pushes(FIVE, at, PREFIX, MOST, ROOM)
    for bad in ((FIVE, 0, PREFIX, MOST), (bytearray(FIVE), 0, PREFIX, MOST, ROOM)):
        with pytest.raises(TypeError):
            lines.pushes(*bad)
    with pytest.raises(TypeError):
        lines.one_push(bytearray(FIVE), PREFIX, MOST)
