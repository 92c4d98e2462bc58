"""Rows about HTTP, measured with wrk: logd compared with a bare application on uvicorn.

The bare application parses and stores nothing, so the ratio is the cost of logd on top of HTTP.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench import peers
from bench.measure import LOGD, Measures, Row, Sample, Setting, Skip, Target
from bench.processes import ROOT, RUN_TIMEOUT_S, BenchError, environment
from bench.workloads import BATCH_BYTES, MESSAGE_BYTES, batches_for, scratch

BARE = "bare app"
TOPIC_BYTES = 64 << 20  # wrk counts only complete downloads: a turn must have several
RAW_BYTES = 8 << 20  # of one response of whole batches
_SCRIPT = ROOT / "bench" / "wrk.lua"


def wrk_missing() -> str | None:
    if shutil.which("wrk"):
        return None
    return "wrk is not installed; `make bench-packages` installs it"


def wrk(url: str, seconds: float, connections: int, body: Path | None = None) -> dict[str, float]:
    command = ["wrk", "-t", "1", "-c", str(connections), "-d", f"{max(1, round(seconds))}s"]
    command += ["--timeout", "30s", "-s", str(_SCRIPT), url, "--", *([str(body)] if body else [])]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=RUN_TIMEOUT_S
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise BenchError(f"wrk: {done.stderr.strip() or done.stdout[-200:]}")
    facts: dict[str, float] = json.loads(lines[0])
    if facts["errors"] or not facts["requests"]:
        raise BenchError(
            f"wrk saw {facts['errors']:.0f} errors in {facts['requests']:.0f} requests"
        )
    return facts


@contextmanager
def posts(setting: Setting, body_bytes: int) -> Iterator[Measures]:
    """One push per request, on 16 persistent connections."""
    if reason := wrk_missing():
        yield {LOGD: Skip(reason)}
        return
    line = b"x" * (MESSAGE_BYTES - 1) + b"\n"
    message = (line * (body_bytes // MESSAGE_BYTES + 1))[: body_bytes - 1] + b"\n"
    with scratch(setting) as place, peers.logd(place, "interval") as ours:
        body = place / "body"
        body.write_bytes(b"PUSH bench %d\r\n%s" % (len(message), message))

        def post(port: int) -> Sample:
            url = f"http://127.0.0.1:{port}/log"
            facts = wrk(url, setting.sizes.seconds, 16, body)
            return Sample(facts["requests"] / facts["seconds"], facts)

        with peers.http_echo(place) as bare:
            yield {LOGD: partial(post, ours.http_port()), BARE: partial(post, bare.port)}


@contextmanager
def downloads(setting: Setting, form: str) -> Iterator[Measures]:
    """A topic in the page cache, over one connection."""
    if reason := wrk_missing():
        yield {LOGD: Skip(reason)}
        return
    with scratch(setting) as place, peers.logd(place, "interval") as ours:
        topic_bytes = int(TOPIC_BYTES * setting.sizes.share)
        load = batches_for(topic_bytes)
        setting.programs.load("logd", ours.port, load)
        path = f"topics/{load.topic}/messages?format={form}&limit=0"
        like = f"whole/{RAW_BYTES}" if form == "raw" else f"streamed/{topic_bytes}"

        def get(port: int, path: str) -> Sample:
            facts = wrk(f"http://127.0.0.1:{port}/{path}", 2 * setting.sizes.seconds, 1)
            return Sample(facts["bytes"] / facts["seconds"] / 1e6, facts)

        with peers.http_echo(place) as bare:
            yield {LOGD: partial(get, ours.http_port(), path), BARE: partial(get, bare.port, like)}


def _post(name: str, what: str, body_bytes: int) -> Row:
    opening = partial(posts, body_bytes=body_bytes)
    return Row(f"http-post-{name}", f"POST /log, {what}", "/s", opening, Target(0.5, beside=BARE))


ROWS = (
    _post("100", "one 100 B message each", MESSAGE_BYTES),
    _post("64k", "a 64 KB batch each", BATCH_BYTES),
    Row("http-text", "GET messages as text", "MB/s", partial(downloads, form="text")),
    Row(
        "http-raw",
        "GET whole batches",
        "MB/s",
        partial(downloads, form="raw"),
        Target(0.6, beside=BARE),
    ),
)
