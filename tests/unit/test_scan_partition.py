"""Walking a partition file: where sound data ends, and what is too old to be believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from logd.batch import body_sum, encode_header
from logd.repair import scan_partition
from logd.storage.disk import File

BODY = b"hello\n"


def batch(offset: int, time_ms: int) -> bytes:
    return encode_header(offset, 1, len(BODY), time_ms, "lines", body_sum(BODY)) + BODY


@pytest.mark.parametrize(
    ("times_ms", "epoch", "sound"),
    [
        ((10, 20, 30), (0, 0), 3),
        ((10, 20, 30), (0, 10), 3),
        ((10, 20, 30), (1, 20), 3),
        ((10, 20, 30), (1, 21), 1),  # written before the crash at 21, lost in it, and back again
        ((10, 20, 30), (3, 99), 3),
        ((10, 20, 30), (0, 11), 0),
    ],
)
def test_what_is_older_than_its_epoch_ends_the_sound_part(
    tmp_path: Path, times_ms: tuple[int, ...], epoch: tuple[int, int], sound: int
) -> None:
    batches = [batch(i, time_ms) for i, time_ms in enumerate(times_ms)]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batches))
    result = scan_partition(File(path), path.name, 0, safe_to=0, epoch=epoch)
    assert (result.next, result.end) == (sound, sum(map(len, batches[:sound])))
    assert (result.torn is None) == (sound == len(batches))
