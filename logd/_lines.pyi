from typing import TypeVar

from logd.batch import Buffer

T = TypeVar("T", bound=tuple[int, int, bytes])

def count(buffer: Buffer, /) -> int: ...
def label(kind: type[T], offset: int, time_ms: int, values: list[bytes], /) -> list[T]: ...
