"""Topics with messages of some hours ago, written by the real storage code with a clock of ours."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from logd.batch import GAP, body_sum, encode_header
from logd.offline import integrity
from tests.support.topic_loop import START_MS, Loop, batch_of, close, create, push

HOUR_S = 3600
KINDS = (b"plain %d", b"with\nLF %d", b"\xff\x00\r\n%d", b"")


def make(
    data_dir: Path, topic: str, messages: int, *, hours: int = 3, each: int = 7, **settings: object
) -> list[bytes]:
    """A topic of so many messages, spread over so many hours, in batches of every encoding."""
    loop, written = Loop(), list[bytes]()
    opened = create(_topics(data_dir) / topic, loop, **settings)
    batches = max(1, messages // each)
    for n in count():
        batch = [_message(i) for i in range(len(written), min(messages, len(written) + each))]
        if not batch:
            break
        stored = push(opened, loop, batch_of(batch, zstd=n % 3 == 2))
        assert stored.is_stored
        written += batch
        loop.pass_time(hours * HOUR_S / batches)
    close(opened, loop)
    return written


def lose(data_dir: Path, topic: str, first: int, next_: int) -> None:
    """Put a gap in the place of the batch with these offsets, as a repair with --accept-loss does.

    A real repair of so small a file would lose what is behind the damage too.
    """
    path = data_dir / "topics" / topic / f"{0:020d}.log"
    data = path.read_bytes()
    start, end = data.index(b"BATCH %d " % first), data.index(b"BATCH %d " % next_)
    time_ms = int(data[start:].split()[4])
    gap = encode_header(first, next_ - first, 0, time_ms, GAP, body_sum(b""))
    path.write_bytes(data[:start] + gap + data[end:])
    for name in ("checkpoint", path.with_suffix(".index").name, path.with_suffix(".ids").name):
        (path.parent / name).unlink()
    integrity.repair(path.parent, accept_loss=True)  # makes these anew


def _message(n: int) -> bytes:
    kind = KINDS[n % len(KINDS)]
    return kind % n if b"%" in kind else kind


def _topics(data_dir: Path) -> Path:
    (data_dir / "topics").mkdir(parents=True, exist_ok=True)
    (data_dir / "lock").touch()
    return data_dir / "topics"


def hour_ms(n: float) -> int:
    """The time so many hours behind the first message."""
    return START_MS + int(n * HOUR_S * 1000)
