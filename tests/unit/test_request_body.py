"""Bodies of HTTP requests: taken apart the same as by simpler means, within limits."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logd.web.batch_builder
import logd.web.ingestion
import logd.web.json_parser
from logd.batch import LINES, SIZED, split_body
from logd.errors import BadRequest, TooLarge
from logd.protocol import Budget
from logd.web.batch_builder import (
    MAX_MESSAGES,
    BatchBuilder,
    PushBody,
    RequestQuota,
    build_lines,
)
from logd.web.elasticsearch import BulkRequest as Bulk
from logd.web.ingestion import parse_messages
from logd.web.loki import parse_streams as loki
from logd.web.request_body import BodyMemory, collect, inflate
from tests.unit.compiled import source

MAX_BYTES = 8 << 20
JSON = "application/json"


FORMS = {
    "as installed": logd.web.json_parser,
    "uncompiled": source("web.json_parser", native=False),
}
VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.characters(blacklist_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('ab[]{},"\\ '), inner),
    max_leaves=10,
)


def messages(body: PushBody) -> list[bytes]:
    return split_body(body.data, body.enc)


# -- gzip ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("size", [0, 1, 16_000, 16_384, 65_536, 65_537, 1 << 20, 3_000_001])
def test_a_gzip_body_is_inflated_in_steps(size: int, level: int) -> None:
    """Data that compresses by a thousand, and data that does not."""
    for content in (bytes(size), random.Random(size).randbytes(size)):
        packed = gzip.compress(content, level)
        assert inflated(packed) == content
        for wrong in (
            packed[:-1],
            packed[: len(packed) // 2],
            packed + b"x",
            packed + bytes(70_000),
        ):
            with pytest.raises(BadRequest):
                inflated(wrong)


def inflated(data: bytes) -> bytes:
    async def compute(work: Callable[[], bytes]) -> bytes:
        return work()

    async def run() -> bytes:
        return await collect(inflate(data, compute), MAX_BYTES, BodyMemory(Budget(MAX_BYTES)))

    return asyncio.run(run())


# -- arrays -------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", FORMS.values(), ids=FORMS)
@given(st.lists(VALUES), st.sampled_from([None, 1]), st.booleans())
def test_the_elements_of_an_array(
    module: ModuleType, values: list[Any], indent: int | None, ascii_only: bool
) -> None:
    array = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode()
    found = [bytes(one) for one in module.elements(memoryview(array), "")]
    assert [json.loads(one) for one in found] == values
    assert all(one == one.strip() for one in found)


@pytest.mark.parametrize("module", FORMS.values(), ids=FORMS)
def test_more_elements_than_are_found_at_a_time(module: ModuleType) -> None:
    for count in (999, 1000, 1001, 2000, 3001):
        array = json.dumps(list(range(count))).encode()
        assert [int(bytes(one)) for one in module.elements(memoryview(array), "")] == list(
            range(count)
        )


@pytest.mark.parametrize("module", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("array", [b"[", b"[1", b"[1,", b'["', b'["\\', b"[[1]", b"1", b"{}"])
def test_an_array_without_an_end_is_refused(module: ModuleType, array: bytes) -> None:
    with pytest.raises(BadRequest, match="reason"):
        list(module.elements(memoryview(array), "reason"))


# -- messages -----------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), min_size=1))
def test_messages_are_packed_as_they_are(given: list[bytes]) -> None:
    packed = BatchBuilder(RequestQuota(MAX_BYTES))
    for message in given:
        packed.add(message)
    found = packed.build()
    assert messages(found) == given
    assert found.messages == len(given)
    assert found.enc == (SIZED if any(b"\n" in message for message in given) else LINES)


def test_many_messages_with_line_ends() -> None:
    many = BatchBuilder(RequestQuota(MAX_BYTES))
    for n in range(10_000):
        many.add(b"%d\n" % n)
    assert messages(many.build()) == [b"%d\n" % n for n in range(10_000)]


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"x"]), min_size=1))
def test_lines_of_any_system(parts: list[bytes]) -> None:
    body = b"".join(parts)
    expected = body.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert messages(build_lines(body)) == [line.removesuffix(b"\r") for line in expected]


@pytest.mark.parametrize("size", [262_142, 262_143, 262_144])
@pytest.mark.parametrize("end", [b"\r\n", b"\r\r\n", b"\r"])
def test_line_ends_at_the_end_of_a_step(size: int, end: bytes) -> None:
    body = b"x" * size + end + b"y\r\n"
    expected = [line.removesuffix(b"\r") for line in body.split(b"\n")[:-1]]
    assert messages(build_lines(body)) == expected


# -- limits -------------------------------------------------------------------------------------

TOO_MANY = {
    "NDJSON": lambda count: parse_messages(b"0\n" * count, "application/x-ndjson", MAX_BYTES),
    "JSON": lambda count: parse_messages(b"[0" + b",0" * (count - 1) + b"]", JSON, MAX_BYTES),
    "bulk": lambda count: Bulk(b'{"create":{}}\n{}\n' * count, "app", MAX_BYTES),
    "deletions": lambda count: Bulk(b'{"delete":{}}\n' * count, "app", MAX_BYTES),
    "Loki": lambda count: loki(
        b'{"streams":[{"stream":{},"values":[["1",""]' + b',["1",""]' * (count - 1) + b"]}]}",
        100 * count,
    ),
}


@pytest.mark.parametrize("parse", TOO_MANY.values(), ids=TOO_MANY)
def test_messages_past_the_limit_are_refused(parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_MESSAGES == 250_000  # as docs/http.md says
    for module in (logd.web.batch_builder, logd.web.ingestion):
        monkeypatch.setattr(module, "MAX_MESSAGES", 1000)
    parse(1000)
    with pytest.raises(TooLarge, match="at most 1000 messages; send less at a time"):
        parse(1001)


def test_streams_past_the_limit_are_refused() -> None:
    stream = b'{"stream":{},"values":[]}'
    loki(b'{"streams":[' + stream + (b"," + stream) * 9_999 + b"]}", MAX_BYTES)
    with pytest.raises(TooLarge, match="at most 10000 streams; send less at a time"):
        loki(b'{"streams":[' + stream + (b"," + stream) * 10_000 + b"]}", MAX_BYTES)


def test_any_number_of_lines_is_stored() -> None:
    assert build_lines(b"\n" * MAX_BYTES).messages == MAX_BYTES


def test_labels_count_in_every_message() -> None:
    body = b'{"streams":[{"stream":{"app":"%s"},"values":[["1",""],["1",""]]}]}' % (b"x" * 1000)
    assert loki(body, 2500)["x" * 128].messages == 2
    with pytest.raises(TooLarge, match="send less at a time"):
        loki(body, 2000)
    with pytest.raises(BadRequest, match="labels of a stream"):
        loki(body.replace(b"x" * 1000, b"x" * 70_000), MAX_BYTES)


# -- errors -------------------------------------------------------------------------------------

FORMS_OF_JSON: dict[str, Callable[[bytes], object]] = {
    "JSON": lambda body: parse_messages(body, JSON, MAX_BYTES),
    "NDJSON": lambda body: parse_messages(b"1\n\n" + body, "application/x-ndjson", MAX_BYTES),
    "Loki": lambda body: loki(b'{"streams": %s}' % body, MAX_BYTES),
    "Loki, labels": lambda body: loki(
        b'{"streams": [{"stream": %s, "values": []}]}' % body, MAX_BYTES
    ),
    "Loki, values": lambda body: loki(
        b'{"streams": [{"stream": {}, "values": %s}]}' % body, MAX_BYTES
    ),
    "bulk, an action": lambda body: Bulk(b"%s\n{}\n" % body, "app", MAX_BYTES),
    "bulk, an index": lambda body: Bulk(b'{"index":{"_index":%s}}\n{}\n' % body, "app", MAX_BYTES),
    "bulk, a document": lambda body: Bulk(b'{"index":{}}\n%s\n' % body, "app", MAX_BYTES),
}
NOT_JSON = [
    b'{"a": }', b"[" * 5000 + b"]" * 5000, b"[" * 100_000, b'["a', b"{} {}",
]  # fmt: skip
WRONG_TYPES = {
    "JSON": [b'["\xff"]', b" "],
    "Loki": [b"1", b"[1]", b"{}", b'[{"stream": {}}]'],
    "Loki, labels": [b"[]", b'{"a": 1}'],
    "Loki, values": [b"1", b'[["1"]]', b'[["x", ""]]', b'[["%s", "x"]]' % (b"9" * 5000)],
    "bulk, an action": [b"1", b'{"index":{},"create":{}}', b'{"other":{}}'],
    "bulk, an index": [b"1"],
}


@pytest.mark.parametrize("form", FORMS_OF_JSON)
def test_invalid_json_is_refused_in_our_words(form: str) -> None:
    """Not in those of the decoder: `Expected `array`, got `object` - at `$.streams``."""
    for body in NOT_JSON + WRONG_TYPES.get(form, []):
        with pytest.raises(BadRequest) as raised:
            FORMS_OF_JSON[form](body)
        for word in ("Expected", "malformed", "`", "$", "codec", "recursion", "truncated"):
            assert word not in raised.value.text
    for text in (b'["\\ud800"]', b'["\xff"]'):  # stored as they are if they need not be decoded
        with suppress(BadRequest):
            FORMS_OF_JSON[form](text)


def test_the_line_that_is_wrong_is_named() -> None:
    with pytest.raises(BadRequest, match="line 3 is not JSON"):
        parse_messages(b"1\n\nx\n", "application/x-ndjson", MAX_BYTES)
