"""The documents are true: every dialogue is held with a real daemon, every table is compared.

The notation of the dialogues is described in CONTRIBUTING.md. Shell and Python blocks are run by
test_readme.py.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest
from xxhash import xxh3_64_hexdigest, xxh32_hexdigest

from logd import __version__, batch, config, protocol
from logd.access import access_file
from logd.config import FSYNC_MODES, fields, flag
from logd.errors import BY_CODE
from logd.wire import requests
from tests.support.daemon import ROOT, running

PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
PAGES += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
PROTOCOL = "docs/protocol.md"
SPARK_PAGE = "docs/spark.md"  # its programs need Spark: tests/integration/spark runs them
LANGUAGES = {"dialogue", "batch", "packages", "console", "python", "text", "toml", "sh"}
PATIENCE_S = 60.0

_FENCE = re.compile(r"```(.*)")
_STEP = re.compile(r"([a-z]?)([<>])([<>|!]?)(?: (.*))?")
_COUNTED = re.compile(rb"(?:TEXT|BATCHES \d+ \d+) (\d+)\r\n")
_PLACEHOLDER = re.compile(r"<([a-z][a-z0-9]*|\.\.\.)>")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|n)")


# -- pages --------------------------------------------------------------------------------------


class Fence(NamedTuple):
    """A fenced block: where it stands, what its opening line says, and its lines."""

    page: str
    line: int
    section: str
    language: str
    options: list[str]
    lines: list[str]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def fences(page: str) -> Iterator[Fence]:
    section, opened = "", None
    for number, line in enumerate((ROOT / page).read_text().split("\n"), 1):
        if match := _FENCE.fullmatch(line):
            if opened is None:
                language, *options = match[1].split() or [""]
                opened = Fence(page, number, section, language, options, [])
            else:
                yield opened
                opened = None
        elif opened is not None:
            opened.lines.append(line)
        elif line.startswith("## "):
            section = line[3:]
    assert opened is None, f"{page}: the block of line {number} does not end"


def sections(*languages: str, pages: Sequence[str] = PAGES) -> list[object]:
    """The blocks in these languages, by page and section, as parameters of a test."""
    found = [fence for page in pages for fence in fences(page) if fence.language in languages]
    return [
        pytest.param(list(blocks), id=f"{page}: {section or 'top'}")
        for (page, section), blocks in groupby(found, lambda fence: (fence.page, fence.section))
    ]


def table(page: str, *heads: str, nth: int = 0) -> list[list[str]]:
    """The rows of the one table with these heads, or of the nth from 0, without backquotes."""
    lines = (ROOT / page).read_text().split("\n")
    at = [i for i, line in enumerate(lines) if line == f"| {' | '.join(heads)} |"][nth]
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.replace("`", "").strip("|").split(" |")])
    return rows


# -- dialogues ----------------------------------------------------------------------------------


class Talk:
    """One connection of a dialogue: what was said on it, and what a reply still owes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self._stream = self._socket.makefile("rb")
        self._owed_bytes = 0
        self._ended = False

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def line(self) -> bytes:
        return self._took(self._stream.readline())

    def exactly(self, size: int) -> bytes:
        return self._took(self._stream.read(size))

    def rest_of_reply(self) -> bytes:
        return self.exactly(self._owed_bytes)

    def _took(self, data: bytes) -> bytes:
        if self._owed_bytes:
            self._owed_bytes -= len(data)
        elif counted := _COUNTED.fullmatch(data):
            self._owed_bytes = int(counted[1])
        return data

    def expect_end(self) -> None:
        assert self._stream.read() == b"", "the server said more"
        self._ended = True

    def finish(self) -> None:
        """Whatever was sent is answered, and there is nothing else to come."""
        assert self._owed_bytes == 0, f"{self._owed_bytes} bytes of the reply are not shown"
        if not self._ended:
            self.half_close()
            self.expect_end()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def hold(fence: Fence, address: str) -> None:
    """Hold one dialogue, line by line; the failure says which line of which page is wrong."""
    talks: dict[str, Talk] = {}
    known: dict[str, str] = {}
    where = fence.page
    with ExitStack() as stack:
        try:
            for number, text in enumerate(fence.lines, fence.line + 1):
                where = f"{fence.page}:{number}: {text}"
                name = text[:1] if text[:1].isalpha() else ""
                if name not in talks:
                    talks[name] = Talk(address)
                    stack.callback(talks[name].close)
                take_step(text, talks[name], known)
            for talk in talks.values():
                talk.finish()
        except (AssertionError, OSError) as error:
            raise AssertionError(f"{where}\n{error}") from error


def take_step(text: str, talk: Talk, known: dict[str, str]) -> None:
    if text == "<...>":
        talk.rest_of_reply()
        return
    step = _STEP.fullmatch(text)
    assert step is not None, "this is no step of a dialogue"
    _, side, kind, said = step.groups(default="")
    if kind == "!":
        talk.half_close() if side == ">" else talk.expect_end()
    elif side == ">":
        assert kind != "<"
        talk.send(unescape(said) if kind == "|" else said.encode() + end_of(kind))
    elif kind == "|":
        wanted = unescape(said)
        got = talk.exactly(len(wanted))
        assert got == wanted, f"got {got!r}"
    else:
        assert kind != ">"
        compare(said, talk.line(), end_of(kind), known)


def end_of(kind: str) -> bytes:
    return b"\n" if kind else b"\r\n"


def unescape(text: str) -> bytes:
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else "\n", text).encode("latin-1")


def compare(said: str, got: bytes, end: bytes, known: dict[str, str]) -> None:
    """`<name>` is any word, the same one wherever it comes again; `<...>` is anything."""
    assert got.endswith(b"\n"), f"got {got!r}"
    pattern, at = "", 0
    for match in _PLACEHOLDER.finditer(said):
        pattern += re.escape(said[at : match.start()]) + _stands_for(match[1], pattern, known)
        at = match.end()
    pattern += re.escape(said[at:] + end.decode())
    found = re.fullmatch(pattern, got.decode("latin-1"))
    assert found is not None, f"got {got!r}"
    known.update(found.groupdict())


def _stands_for(name: str, pattern: str, known: dict[str, str]) -> str:
    if name == "...":
        return r"[^\r\n]*"
    if name in known:
        return re.escape(known[name])
    return f"(?P={name})" if f"(?P<{name}>" in pattern else f"(?P<{name}>[^ \r\n]+)"


@pytest.mark.parametrize("blocks", sections("dialogue"))
def test_dialogues(blocks: list[Fence], tmp_path: Path) -> None:
    with running(tmp_path) as shared:
        for block in blocks:
            if not block.options:
                hold(block, shared.address)
    for block in blocks:
        if block.options:
            with running(tmp_path / str(block.line), *block.options) as own:
                hold(block, own.address)


@pytest.mark.parametrize(
    "wrong",
    [
        ["> PING", "< NO"],
        ["> PING", "<< OK"],
        ["> PING"],
        ["< OK"],
        ["> HELP", "< TEXT <n>"],
        ["> PING", "< OK", "<!", "PING"],
        ["> PUSH app", "> x", "< OK <n> <n>"],
        ["> PUSH app", "> x", "< OK <n> 1", "b> PUSH app", "b> x", "b< OK <n> 1"],
    ],
)
def test_a_wrong_dialogue_fails(
    wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "PATIENCE_S", 0.2)
    with running(tmp_path) as daemon, pytest.raises(AssertionError):
        hold(Fence("a page", 1, "", "dialogue", [], wrong), daemon.address)


# -- pages agree with the code ------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_no_block_is_left_out_by_a_misspelt_language(page: str) -> None:
    assert [f for f in fences(page) if f.language not in LANGUAGES] == []


@pytest.mark.parametrize("blocks", sections("toml"))
def test_settings_in_a_file(blocks: list[Fence], tmp_path: Path) -> None:
    file = tmp_path / "logd.toml"
    for fence in blocks:
        file.write_text("\n".join(fence.lines))
        access_file.load(file) if "access" in fence.options else config.load({}, {}, file)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in heads}


def test_the_worked_batch() -> None:
    (fence,) = (fence for fence in fences(PROTOCOL) if fence.language == "batch")
    line, _, body = fence.text.partition("\n")
    header = batch.parse_header(f"{line}\r\n".encode())
    assert header is not None, "the header's own sum is wrong"
    assert (header.size, header.sum) == (len(body), batch.body_sum(body.encode()))
    assert header.messages == batch.count_messages(body.encode(), header.enc)


def test_the_table_of_sums() -> None:
    for text, long, short in table(PROTOCOL, "bytes", "XXH3-64", "XXH32"):
        data = unescape("" if text == "none" else text)
        assert (long, short) == (xxh3_64_hexdigest(data), xxh32_hexdigest(data))


def test_the_table_of_errors() -> None:
    rows = table(PROTOCOL, "code", "meaning", "closes the connection", "client action")
    assert [row[0] for row in rows] == list(BY_CODE)
    for code, _, closes, _ in rows:
        assert not BY_CODE[code].closes or closes.startswith("yes"), code


def test_the_table_of_encodings() -> None:
    rows = table(PROTOCOL, "`<enc>`", "body")
    named = [name for row in rows for name in row[0].split(", ")]
    assert named == [*batch.ENCODINGS, batch.GAP]


def test_the_table_of_limits() -> None:
    rows = table(PROTOCOL, "limit", "default", "setting")
    numbers = {row[0]: int(row[1].split()[0].replace(",", "")) for row in rows}
    assert numbers["command line"] == protocol.MAX_LINE_BYTES
    assert numbers["batch header"] == batch.MAX_HEADER_BYTES
    assert numbers["message of a one-line PUSH"] == protocol.MAX_ONE_LINE_BYTES
    assert numbers["wait=; larger values are reduced to it"] == requests.MAX_WAIT_MS
    defaults = {flag(field.name): field.default for field in fields()}
    for limit, _, setting in rows:
        assert not setting or numbers[limit] == defaults[setting]


def test_the_table_of_fsync_modes() -> None:
    heads = ("`OK` is sent when", "lost if the daemon is killed", "lost in a power failure")
    rows = table("README.md", "`fsync`", *heads)
    assert [row[0].split()[0] for row in rows] == list(FSYNC_MODES)


def test_this_version_is_in_the_changelog() -> None:
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_every_command_is_described() -> None:
    text = (ROOT / PROTOCOL).read_text()
    for verb in ["PUSH", *(verb.decode() for verb in requests.COMMANDS)]:
        assert re.search(rf"^(    |\| `){verb}\b", text, re.MULTILINE), verb
