"""Messages to a batch that can be pushed, compressed if that saves enough."""

from __future__ import annotations

from logd.batch import body_sum, compress, encode_body
from logd.client.unacked import UnackedBatch
from logd.wire.requests import Push

_MAX_RATIO = 0.875  # of the size: smaller savings are not worth the time on both sides
_SKIPPED = 15  # batches that are not compressed after one that was not worth it


class BatchEncoder:
    def __init__(self, topic: str, *, compressed: bool) -> None:
        self._topic, self._compressed = topic, compressed
        self._skip = 0

    def encode(self, messages: list[bytes], most_bytes: int | None = None) -> UnackedBatch:
        """One batch of these messages, or of the first ones if all exceed `most_bytes`."""
        body, enc = encode_body(messages)
        while most_bytes is not None and len(body) > most_bytes and len(messages) > 1:
            messages = messages[: len(messages) // 2]
            body, enc = encode_body(messages)
        if self._compressed:
            body, enc = self._compress(body, enc)
        push = Push(self._topic, body, enc, len(messages), body_sum(body))
        return UnackedBatch(push, len(messages))

    def _compress(self, body: bytes, enc: str) -> tuple[bytes, str]:
        if self._skip:
            self._skip -= 1
            return body, enc
        small, small_enc = compress(body, enc)
        if len(small) <= len(body) * _MAX_RATIO:
            return small, small_enc
        self._skip = _SKIPPED
        return body, enc
