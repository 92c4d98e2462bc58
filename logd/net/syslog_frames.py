"""The framing of syslog over TCP: octet-counted, or terminated by LF or NUL (RFC 6587).

Sans I/O: bytes in, records out. Records are returned as they were sent.
"""

from __future__ import annotations

import re

MAX_FRAME_BYTES = 64 * 1024
_COUNT = re.compile(rb"([1-9][0-9]{0,6}) ")
_STARTS_COUNT = re.compile(rb"[1-9][0-9]{0,6}")
_BLANK = re.compile(rb"[\r\n\0]+")  # between records
_NEXT_LINE = re.compile(rb"\n<[0-9]{1,3}>")
_LOOKAHEAD_BYTES = 5  # of _NEXT_LINE that may have arrived before it matches


class Frames:
    """Splits a byte stream into syslog records, independently of how the stream was divided.

    A record that starts with a number and a space is octet-counted. Any other ends at LF or NUL,
    whichever comes first. After a NUL has ended a record, the sender is assumed to terminate with
    NUL, as Python's SysLogHandler does, and LF is content. A LF followed by the `<priority>` of
    another record ends that assumption.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.cut = 0  # number of records that were truncated to MAX_FRAME_BYTES
        self._ends_with_nul = False
        self._searched_bytes = 0  # of the rest, which contain no terminator
        self._skips_record = False
        self._skip_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        data, self._rest = self._rest + data, b""
        frames: list[bytes] = []
        at = 0
        while at < len(data):
            end = self._frame(data, at, frames)
            if end < 0:
                self._rest = data[at:]
                break
            at = end
        return frames

    def end(self) -> list[bytes]:
        """A last record may lack its terminator; an incomplete counted frame is dropped."""
        rest, self._rest = self._rest, b""
        if self._skips_record or _STARTS_COUNT.match(rest):
            return []
        record = _without_line_end(rest)
        return [record] if record else []

    def _frame(self, data: bytes, at: int, frames: list[bytes]) -> int:
        """Take one record at `at`. Returns the start of the next, or -1 if more data is needed."""
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data) - at)
            self._skip_bytes -= skipped
            return at + skipped
        if self._skips_record:
            return self._skip(data, at)
        if not self._searched_bytes:
            blank = _BLANK.match(data, at)
            if blank is not None:
                self._ends_with_nul |= b"\0" in blank[0]
                return blank.end()
            count = _COUNT.match(data, at)
            if count is not None:
                return self._counted(data, count, frames)
            if _STARTS_COUNT.fullmatch(data, at):
                return -1
        return self._terminated(data, at, frames)

    def _counted(self, data: bytes, count: re.Match[bytes], frames: list[bytes]) -> int:
        start, size = count.end(), int(count[1])
        kept = min(size, MAX_FRAME_BYTES)
        if len(data) - start < kept:
            return -1
        frames.append(data[start : start + kept].removesuffix(b"\n"))
        if kept < size:
            self.cut += 1
            self._skip_bytes = size - kept
        return start + kept

    def _terminated(self, data: bytes, at: int, frames: list[bytes]) -> int:
        end = self._terminator(data, at + self._searched_bytes)
        if end < 0 and len(data) - at <= MAX_FRAME_BYTES + _LOOKAHEAD_BYTES:
            self._searched_bytes = max(0, len(data) - at - _LOOKAHEAD_BYTES)
            return -1
        self._searched_bytes = 0
        record = data[at : end if end >= 0 else len(data)]
        if len(record) > MAX_FRAME_BYTES:
            self.cut += 1
            record = record[:MAX_FRAME_BYTES]
        record = _without_line_end(record)
        if record:
            frames.append(record)
        if end < 0:
            self._skips_record = True
            return len(data) - _LOOKAHEAD_BYTES
        return end + 1

    def _terminator(self, data: bytes, at: int) -> int:
        """The end of the record, or -1; remembers which terminator the sender uses."""
        end = data.find(b"\0", at)
        if not self._ends_with_nul:
            line_end = data.find(b"\n", at, end if end >= 0 else len(data))
            self._ends_with_nul = end >= 0 > line_end
            return line_end if line_end >= 0 else end
        next_record = _NEXT_LINE.search(data, at, end if end >= 0 else len(data))
        if next_record is None:
            return end
        self._ends_with_nul = False
        return next_record.start()

    def _skip(self, data: bytes, at: int) -> int:
        """Drop the rest of a record that was too long."""
        end = self._terminator(data, at)
        if end >= 0:
            self._skips_record = False
            return end + 1
        kept_from = len(data) - _LOOKAHEAD_BYTES
        return kept_from if kept_from > at else -1


def _without_line_end(record: bytes) -> bytes:
    return record.removesuffix(b"\n").removesuffix(b"\r")
