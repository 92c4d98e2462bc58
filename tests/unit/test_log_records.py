"""Log records as JSON: what is in them, what wins, and that nothing a program logs breaks them."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sys
import threading
from contextvars import copy_context
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.logging.records import ContextFilter, JsonFormatter, log_context, text_of, to_bytes


def record(message: object = "hello", *args: object, **attributes: Any) -> logging.LogRecord:
    made = logging.LogRecord("shop.cart", logging.INFO, "/app/cart.py", 7, message, args, None)
    made.__dict__.update(attributes)
    return made


def formatted(made: logging.LogRecord, formatter: JsonFormatter | None = None) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (formatter or JsonFormatter()).format(made)
    values = json.loads(to_bytes(text), parse_constant=refuse)
    assert isinstance(values, dict)
    return values


def fields(**attributes: Any) -> dict[str, Any]:
    """What the fields of a record became."""
    return dict(list(formatted(record(**attributes)).items())[4:])


class Broken:
    def __str__(self) -> str:
        raise KeyError("no")

    __repr__ = __str__


def test_what_every_record_has() -> None:
    assert formatted(record("%s of %d", "one", 2, created=1767225600.25)) == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "INFO",
        "logger": "shop.cart",
        "message": "one of 2",
    }


@pytest.mark.parametrize(
    ("created", "time"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1767225599.9999, "2025-12-31T23:59:59.999Z"),
        (-0.5, "1969-12-31T23:59:59.500Z"),
    ],
)
def test_times(created: float, time: str) -> None:
    assert formatted(record(created=created))["time"] == time


def test_the_same_formatter_at_several_times() -> None:
    formatter = JsonFormatter()
    times = [formatted(record(created=at), formatter)["time"][17:] for at in (5.0, 5.5, 4.0, 6.0)]
    assert times == ["05.000Z", "05.500Z", "04.000Z", "06.000Z"]


def test_more_of_the_records_own() -> None:
    everything = JsonFormatter(include=["line", "file", "function", "pid", "process", "thread"])
    made = record(process=12, processName="worker", threadName="main", funcName="add")
    assert list(formatted(made, everything).items())[4:] == [
        ("pid", 12), ("process", "worker"), ("thread", "main"),
        ("file", "/app/cart.py"), ("line", 7), ("function", "add"),
    ]  # fmt: skip


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="'lines' cannot be included; known are: pid"):
        JsonFormatter(include=["lines"])
    with pytest.raises(ValueError, match="at least 1024"):
        JsonFormatter(max_bytes=1023)


def test_exceptions_and_stacks() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        made = record(exc_info=sys.exc_info(), stack_info="Stack (most recent call last): ...")
    values = formatted(made)
    assert values["exception"] == "ValueError: boom"
    assert values["traceback"].startswith("Traceback (most recent call last):\n")
    assert values["traceback"].endswith("ValueError: boom")
    assert values["stack"].startswith("Stack")


def test_an_exception_that_another_handler_has_formatted() -> None:
    assert fields(exc_text="Traceback ...") == {"traceback": "Traceback ..."}


def test_a_blank_traceback_of_another_library_is_replaced() -> None:
    """loguru sets it to a line end, so that text formatters do not add a second traceback."""
    error = ValueError("boom")
    values = fields(exc_info=(ValueError, error, None), exc_text="\n")
    assert values == {"exception": "ValueError: boom", "traceback": "ValueError: boom"}


def test_no_exception_is_none() -> None:
    assert fields(exc_info=(None, None, None)) == {}


# -- fields -------------------------------------------------------------------------------------


def test_the_nearest_field_wins() -> None:
    formatter = JsonFormatter(fields={"a": "fixed", "b": "fixed", "c": "fixed"})
    with log_context(b="context", c="context"):
        values = formatted(record(c="extra"), formatter)
    assert list(values.items())[4:] == [("a", "fixed"), ("b", "context"), ("c", "extra")]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"level": 3}, {"level_": 3}),
        ({"pid": 3, "stack": 4}, {"pid_": 3, "stack_": 4}),
        ({"level": 3, "level_": 4}, {"level__": 3, "level_": 4}),
        ({"level_": 4, "level": 3}, {"level_": 4, "level__": 3}),
        ({"level": 1, "level_": 2, "level__": 3}, {"level___": 1, "level_": 2, "level__": 3}),
    ],
)
def test_a_field_called_like_one_of_the_records_own_gets_another_name(
    given: dict[str, int], kept: dict[str, int]
) -> None:
    assert fields(**given) == kept


def test_what_other_formatters_left_in_a_record_is_no_field() -> None:
    assert fields(message="x", asctime="y", taskName="z") == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"caf\xc3\xa9", "café"),
        (b"\xff\x00", "\\xff\x00"),
        (bytearray(b"x"), "x"),
        (memoryview(b"x"), "x"),
        (math.nan, "nan"),
        ({"a": [math.inf]}, "{'a': [inf]}"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ({1, }, "{1}"),
        (KeyError("x"), "'x'"),
        (Broken(), "<Broken whose str() fails: KeyError>"),
        ([Broken()], ["<Broken whose str() fails: KeyError>"]),
        ({Broken(): 1}, "<dict whose str() fails: KeyError>"),
        ("\udc80", "\udc80"),
        ([10**5000], "<list whose str() fails: ValueError>"),
        ({"a": 1, "b": [None, True, 1.5]}, {"a": 1, "b": [None, True, 1.5]}),
    ],
)  # fmt: skip
def test_what_is_no_json_becomes_text(value: object, text: object) -> None:
    assert fields(x=value, y=1) == {"x": text, "y": 1}


def test_circles_and_depths() -> None:
    circle: list[object] = []
    circle.append(circle)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert fields(x=circle) == {"x": "[[...]]"}
    assert fields(x=deep) == {"x": "<list whose str() fails: RecursionError>"}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.text(st.characters(categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=50)
@given(ANYTHING, st.dictionaries(st.text(), ANYTHING, max_size=4))
def test_whatever_is_logged_is_json_within_the_limit(message: Any, given: dict[str, Any]) -> None:
    attributes = {name: value for name, value in given.items() if not hasattr(record(), name)}
    made, formatter = record(message, **attributes), JsonFormatter(max_bytes=1024)
    assert len(to_bytes(formatter.format(made))) <= 1024
    assert formatted(made, formatter)["logger"] == "shop.cart"


# -- what is too long ---------------------------------------------------------------------------


def test_what_just_fits_is_left_alone() -> None:
    empty = len(JsonFormatter().format(record("")))
    formatter = JsonFormatter(max_bytes=2000)
    fits, longer = "x" * (2000 - empty), "x" * (2001 - empty)
    assert formatted(record(fits), formatter)["message"] == fits
    assert formatted(record(longer), formatter)["message"] == (
        f"{'x' * 1000}… [cut: {len(longer)} characters]"
    )


@pytest.mark.parametrize("letter", ["x", "é", "😀", '"', "\x00", "\udc80"])
def test_the_limit_is_in_bytes(letter: str) -> None:
    text = JsonFormatter(max_bytes=5000).format(record(letter * 100_000))
    assert 1000 < len(to_bytes(text)) <= 5000
    assert "[cut: 100000 characters]" in json.loads(to_bytes(text))["message"]


def test_long_values_are_cut_and_short_ones_stay() -> None:
    made = record("hello", short=[1], long="y" * 5000, deep={"a": ["z" * 5000]})
    values = formatted(made, JsonFormatter(max_bytes=4000))
    assert (values["message"], values["short"]) == ("hello", [1])
    assert values["long"] == f"{'y' * 1000}… [cut: 5000 characters]"
    assert values["deep"].startswith('{"a":["zzz')


def test_too_many_fields() -> None:
    made = record("hello", **{f"field{i}": i for i in range(1000)})
    values = formatted(made, JsonFormatter(max_bytes=1024))
    assert values["message"] == "hello"
    assert values["left_out"] == 1000


# -- context ------------------------------------------------------------------------------------


def test_contexts_nest_and_end() -> None:
    with log_context(a=1, b=1):
        with log_context(b=2):
            assert fields() == {"a": 1, "b": 2}
        assert fields() == {"a": 1, "b": 1}
        with pytest.raises(KeyError), log_context(c=3):
            raise KeyError
        assert fields() == {"a": 1, "b": 1}
    assert fields() == {}


async def test_a_context_belongs_to_its_task() -> None:
    both_are_in = asyncio.Barrier(2)

    async def request(number: int) -> dict[str, Any]:
        with log_context(request_id=number):
            await both_are_in.wait()
            return fields()

    with log_context(server="a"):
        found = await asyncio.gather(request(1), request(2))
    assert list(found) == [{"server": "a", "request_id": 1}, {"server": "a", "request_id": 2}]


def test_a_context_that_is_left_from_elsewhere() -> None:
    block = log_context(a=1)
    copy_context().run(block.__enter__)
    block.__exit__(None, None, None)
    assert fields() == {}


def test_a_filter_takes_the_context_to_another_thread() -> None:
    made, seen = record(), []
    with log_context(a=1):
        assert ContextFilter().filter(made)
    with log_context(b=2):
        thread = threading.Thread(target=lambda: seen.append(formatted(made)))
        thread.start()
        thread.join()
        seen.append(formatted(made))
    assert [list(values.items())[4:] for values in seen] == [[("a", 1)], [("a", 1)]]


def test_a_message_that_cannot_be_put_together_raises_as_in_every_formatter() -> None:
    with pytest.raises(TypeError):
        JsonFormatter().format(record("%d", "x"))
    assert text_of("x") == "x"
