"""Run work in this process as if it were killed at one of its calls of `logd.storage.disk`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from logd.storage import disk

_CALLS = ("write_at", "sync", "cut", "drop_cache", "create", "replace", "rename", "remove",
          "make_directory", "sync_directory")  # fmt: skip


class Killed(BaseException):
    """Not an Exception: the work must not catch it, because it cannot catch a kill."""


def is_killed(work: Callable[[], object], nth: int, how: str, patch: pytest.MonkeyPatch) -> bool:
    """Kill it "before" or "after" the nth call, or "within", which writes half of the data.

    False if the work ended before that call.
    """
    numbers = count(1)

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            number = next(numbers)
            if number == nth and how == "before":
                raise Killed
            if number == nth and how == "within" and name == "write_at":
                file, buffers, position = arguments
                data = b"".join(buffers)
                function(file, [data[: len(data) // 2]], position)
                raise Killed
            result = function(*arguments, **options)
            if number == nth:
                raise Killed
            return result

        return call

    with patch.context() as patching:
        for name in _CALLS:
            patching.setattr(disk, name, wrap(name, getattr(disk, name)))
        try:
            work()
        except Killed:
            return True
    return False
