"""What a writer does for each message, as source and as compiled."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.unit.compiled import forms


class Bytes(bytes):
    pass


def intake(module: ModuleType) -> Any:
    class Intake(module.MessageAppend):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.attended: list[bytes] = []

        def _exceed_limit(self, message: bytes) -> None:
            self.attended.append(message)

    return Intake()


@pytest.mark.parametrize("module", forms("client.message_append"))
def test_a_message_is_kept_and_counted_with_its_line_end(module: ModuleType) -> None:
    taken = intake(module)
    taken._limit = 100
    for message in (b"one", b"", b"three"):
        taken.write(message)
    assert (taken._buffer, taken._size, taken.attended) == ([b"one", b"", b"three"], 11, [])


@pytest.mark.parametrize("module", forms("client.message_append"))
def test_whoever_passes_the_limit_attends_to_it(module: ModuleType) -> None:
    taken = intake(module)
    taken.write(b"first")  # the limit is such that the first always does
    taken._limit = 6
    taken.write(b"x")
    assert taken.attended == [b"first", b"x"]
    taken._limit = 10
    taken.write(b"y")
    assert taken.attended == [b"first", b"x"]
    assert taken._buffer == [b"first", b"x", b"y"]


@pytest.mark.parametrize("module", forms("client.message_append"))
@pytest.mark.parametrize("message", ["text", bytearray(b"x"), memoryview(b"x"), Bytes(b"x"), None])
def test_what_is_not_bytes_is_refused_and_not_kept(module: ModuleType, message: Any) -> None:
    taken = intake(module)
    with pytest.raises(TypeError, match=f"a message is bytes, not {type(message).__name__}"):
        taken.write(message)
    assert (taken._buffer, taken._size, taken.attended) == ([], 0, [])
