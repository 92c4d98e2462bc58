"""The batch, the unit of writing, checking and reading: the same bytes on disk and on the wire.

    BATCH <offset> <messages> <bytes> <time> <enc> <sum> <id> <head>\\r\\n
    <bytes of body>

Always: the last field of the header is a checksum of the rest of it, `sum` is the checksum of the
body, and the offsets of consecutive batches have no gap. `scan` is the only code that walks over
batches; reading, checking, recovery and index rebuilding use it. Does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import zstandard
from xxhash import xxh3_64_hexdigest, xxh32_hexdigest

from logd.errors import BadRequest, DamagedBatch, TooLarge

MAX_HEADER_BYTES = 1024
MAX_NUMBER = 2**63 - 1
LINES, SIZED, LINES_ZSTD, SIZED_ZSTD = "lines", "sized", "lines+zstd", "sized+zstd"
ENCODINGS = (LINES, SIZED, LINES_ZSTD, SIZED_ZSTD)
GAP = "gap"
JOIN_BYTES = 64 * 1024  # the largest batch that is made by joining plain pushes
SMALL_BYTES = 16 * 1024  # larger pushes are not joined: the copy would cost more
LF = 10
NO_ID = "-"

_NUMBER = rb"(0|[1-9][0-9]{0,18})"
_HEADER = re.compile(
    rb"(BATCH " + rb" ".join([_NUMBER] * 4) + rb" (lines|sized|lines\+zstd|sized\+zstd|gap)"
    rb" ([0-9a-f]{16}) (-|[A-Za-z0-9._-]{1,64}:(?:0|[1-9][0-9]{0,18})) (?:[!-~]+ )*)"
    rb"([0-9a-f]{8})\r\n"
)  # fmt: skip
_SIZES = re.compile(rb"(?:0|[1-9][0-9]{0,9}+)(?: (?:0|[1-9][0-9]{0,9}+))*+")
_SIZES_AT_A_TIME_BYTES = 64 * 1024  # 3 ms, during which no other thread runs
_NOTHING = memoryview(b"")
INFLATE_BYTES = 16 * 1024  # per step, where a body is inflated in steps
_MAX_WINDOW_BYTES = 1 << 31  # a decoder takes no more memory than the declared content size
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

Buffer = bytes | bytearray | memoryview
body_sum: Callable[[Buffer], str] = xxh3_64_hexdigest

try:
    from logd import _native

    count_lf, split_lines, read_sizes = _native.count, _native.split, _native.sizes
    encode_header = _native.header
except (ImportError, AttributeError):  # installed without a compiler

    def encode_header(
        offset: int, messages: int, size: int, time_ms: int, enc: str, sum_: str,
        id_: str = NO_ID, more: str = "", /,
    ) -> bytes:  # fmt: skip
        """`more` is fields that this version does not know, each followed by a space."""
        head = f"BATCH {offset} {messages} {size} {time_ms} {enc} {sum_} {id_} {more}".encode()
        return head + f"{xxh32_hexdigest(head)}\r\n".encode()

    def count_lf(buffer: Buffer, /) -> int:
        return bytes(buffer).count(b"\n")

    def split_lines(buffer: Buffer, /) -> list[bytes]:
        return bytes(buffer).split(b"\n")[:-1]

    def read_sizes(buffer: Buffer, /) -> tuple[int, int, int] | None:
        """The number of sizes in the first line, the end of the line, and their sum; None if it is
        not a line of sizes. There may be millions, so it is read in steps."""
        body = bytes(buffer)
        count = at = total = 0
        end = body.find(b"\n")
        while at <= end:
            stop = end
            if end - at > _SIZES_AT_A_TIME_BYTES:
                stop = body.rfind(b" ", at, at + _SIZES_AT_A_TIME_BYTES)
            sizes = body[at : max(at, stop)]
            if not _SIZES.fullmatch(sizes):
                return None
            numbers = sizes.split(b" ")
            count, total = count + len(numbers), total + sum(map(int, numbers))
            at = stop + 1
        return (count, at, total) if at else None


class Header(NamedTuple):
    """The fields of a header line. `head_size` is the length of the line, including CRLF."""

    offset: int
    messages: int
    size: int
    time_ms: int
    enc: str
    sum: str
    id: str
    head_size: int

    @property
    def next(self) -> int:
        return self.offset + self.messages


class ScannedBatch(NamedTuple):
    """A batch found by a scan: its position, its header, its body (empty if not requested)."""

    position: int
    header: Header
    body: memoryview

    @property
    def end(self) -> int:
        return self.position + self.header.head_size + self.header.size


def parse_header(data: Buffer, at: int = 0) -> Header | None:
    """The header at `at`, or None if there is no valid header."""
    match = _HEADER.match(data, at)
    if match is None or match.end() - at > MAX_HEADER_BYTES:
        return None
    covered, offset, messages, size, time_ms, enc, sum_, id_, head = match.groups()
    if xxh32_hexdigest(covered).encode() != head:
        return None
    header = Header(
        int(offset), int(messages), int(size), int(time_ms),
        str(enc, "ascii"), str(sum_, "ascii"), str(id_, "ascii"), match.end() - at,
    )  # fmt: skip
    gap_is_empty = (header.enc == GAP) == (header.size == 0)
    return header if header.messages and gap_is_empty and header.next <= MAX_NUMBER else None


# -- scanning -----------------------------------------------------------------------------------

Read = Callable[[int, int], Buffer]  # (position, size) → the bytes there, fewer only at the end


def reading(buffer: Buffer) -> Read:
    """A `Read` over bytes in memory."""
    view = memoryview(buffer)
    return lambda position, size: view[position : position + size]


def scan(
    read: Read,
    position: int,
    end: int,
    *,
    bodies: bool = True,
    expect: int | None = None,
    since_ms: int = 0,
    window_bytes: int = 1 << 20,
    max_body_bytes: int = MAX_NUMBER,
) -> Iterator[ScannedBatch]:
    """Yield the batches in [position, end) in order; raise DamagedBatch at the first invalid one.

    With `bodies` the checksum of each body is verified; otherwise bodies are skipped. `expect` is
    the offset that the first batch must have, `since_ms` the earliest time it may have. A body
    larger than `max_body_bytes` is skipped too: `batch_decoder` reads it in windows.
    """
    window_bytes = max(window_bytes, MAX_HEADER_BYTES)
    base, view = position, memoryview(b"")
    while position < end:
        header = parse_header(view, position - base)
        if header is None:
            base, view = position, memoryview(read(position, min(window_bytes, end - position)))
            header = parse_header(view)
        if header is None:
            raise DamagedBatch("no valid batch header", position)
        size = header.head_size + header.size
        if size > end - position:
            raise DamagedBatch("a batch that runs past the end", position)
        if expect is not None and header.offset != expect:
            raise DamagedBatch(f"offset {header.offset} where {expect} was due", position)
        if header.time_ms < since_ms:
            raise DamagedBatch("a batch older than the one before it", position)
        body = _NOTHING
        if bodies and header.size <= max_body_bytes:
            if position - base + size > len(view):
                wanted = min(max(window_bytes, size), end - position)
                base, view = position, memoryview(read(position, wanted))
            body = view[position - base + header.head_size : position - base + size]
            if len(body) != header.size or body_sum(body) != header.sum:
                raise DamagedBatch("a body that does not match its sum", position)
        yield ScannedBatch(position, header, body)
        position, expect, since_ms = position + size, header.next, header.time_ms


# -- bodies -------------------------------------------------------------------------------------


def encode_body(messages: Sequence[bytes]) -> tuple[bytes, str]:
    """The body of these messages and its encoding: lines if no message contains LF, else sized."""
    body = b"\n".join(messages) + b"\n"
    if count_lf(body) == len(messages):
        return body, LINES
    sizes = b" ".join([b"%d" % len(message) for message in messages])
    return b"%s\n%s" % (sizes, b"".join(messages)), SIZED


def compress(body: Buffer, enc: str, level: int = 3) -> tuple[bytes, str]:
    """One zstd frame that declares its content size, as the protocol requires."""
    return zstandard.ZstdCompressor(level=level).compress(body), f"{enc}+zstd"


def inflate(body: Buffer, limit_bytes: int) -> bytes:
    """The content of the single zstd frame in `body`, at most `limit_bytes`."""
    if bytes(body[:4]) != _ZSTD_MAGIC:
        raise BadRequest("the body is not a zstd frame")
    try:
        frame = zstandard.get_frame_parameters(body)
        if frame.content_size == zstandard.CONTENTSIZE_UNKNOWN:
            raise BadRequest("the zstd frame must declare its content size")
        if frame.dict_id:
            raise BadRequest("zstd dictionaries are not supported")
        if frame.content_size > limit_bytes:
            raise TooLarge(f"the zstd frame inflates past {limit_bytes} bytes")
        inflater = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        return inflater.decompress(body, max_output_size=limit_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadRequest(f"the body is not one valid zstd frame: {error}") from None


def inflate_to_store(body: Buffer, limit_bytes: int) -> bytes:
    """The same for a frame to be stored. Some readers inflate it whole, others in steps, and a
    decoder that works in steps rejects some frames that the other accepts. One pass in steps would
    not be enough: it does not detect an empty frame after the first, which the other rejects."""
    content = inflate(body, limit_bytes)
    if max(len(body), len(content)) > INFLATE_BYTES and not _is_read_in_steps(body, len(content)):
        raise BadRequest("the body is not one valid zstd frame: it cannot be inflated in steps")
    return content


class _Pieces:
    """The stored bytes of a body as a file object for the decompressor."""

    def __init__(self, pieces: Iterator[Buffer]) -> None:
        self._pieces = pieces

    def read(self, _: int = -1) -> bytes:
        return bytes(next(self._pieces, b""))


def inflate_in_steps(pieces: Iterator[Buffer], window_bytes: int) -> Iterator[bytes]:
    """The content of the zstd frame that consists of these pieces, in windows."""
    inflater = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    content = inflater.stream_reader(_Pieces(pieces), read_size=INFLATE_BYTES)  # type: ignore[arg-type]
    while window := content.read(window_bytes):
        yield window


def _is_read_in_steps(body: Buffer, size: int) -> bool:
    pieces = (body[at : at + INFLATE_BYTES] for at in range(0, len(body), INFLATE_BYTES))
    try:
        return sum(map(len, inflate_in_steps(pieces, INFLATE_BYTES))) == size
    except zstandard.ZstdError:
        return False


def count_messages(body: Buffer, enc: str) -> int:
    """The number of messages of an uncompressed body; BadRequest if it is malformed."""
    if enc == LINES:
        if not len(body) or body[-1] != LF:
            raise BadRequest("a body of lines must end in LF")
        return count_lf(body)
    return _read_sizes(body)[0]


def split_body(body: Buffer, enc: str, limit_bytes: int = 1 << 30) -> list[bytes]:
    """The messages of a body in any encoding."""
    if enc.endswith("+zstd"):
        body, enc = inflate(body, limit_bytes), enc.removesuffix("+zstd")
    if enc == LINES:
        if not len(body) or body[-1] != LF:
            raise BadRequest("a body of lines must end in LF")
        return split_lines(body)
    body = bytes(body)
    line, start = sizes_line(body)
    messages = []
    for size in map(int, line.split(b" ")):
        messages.append(body[start : start + size])
        start += size
    return messages


def sizes_line(body: Buffer) -> tuple[bytes, int]:
    """The first line of a sized body, its sizes, and where the messages start."""
    start = _read_sizes(body)[1]
    return bytes(body[: start - 1]), start


def _read_sizes(body: Buffer) -> tuple[int, int]:
    """The number of messages of a sized body, and where they start."""
    found = read_sizes(body)
    if found is None:
        raise BadRequest("a sized body must start with a line of sizes")
    count, start, total = found
    if total != len(body) - start:
        raise BadRequest("the sizes of the body do not add up to its length")
    return count, start
