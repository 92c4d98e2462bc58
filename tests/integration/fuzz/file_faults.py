"""What can happen to the files of a data directory: several things at once, also between topics."""

from __future__ import annotations

from random import Random

Files = dict[str, bytes]  # by path below topics/

_KINDS = (".log", ".log", ".log", ".index", ".ids", "checkpoint", "cursors", "meta.json")
_SIZES = (1, 1, 2, 8, 32, 77, 600, 5000)


def _flip(random: Random, data: bytes, at: int, size: int) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 3))):
        changed[min(at + random.randrange(size), len(data) - 1)] ^= 1 << random.randrange(8)
    return bytes(changed)


def _changed(random: Random, data: bytes) -> bytes:
    at, size = random.randrange(len(data)), random.choice(_SIZES)
    before, hit, behind = data[:at], data[at : at + size], data[at + size :]
    match random.randrange(11):
        case 0 | 1 | 2:
            return _flip(random, data, at, size)
        case 3:
            return before
        case 4:
            return before + bytes(len(hit)) + behind
        case 5:
            return before + random.randbytes(len(hit)) + behind
        case 6:
            return before + behind
        case 7:
            return before + hit + hit + behind
        case 8:
            return before + random.randbytes(size) + hit + behind
        case 9:
            return data + random.choice((bytes(size), random.randbytes(size), data[-size:], data))
        case _:
            return before + behind + hit


def with_faults(random: Random, files: Files) -> tuple[Files, bool]:
    """The files after one to four blows, and whether a log may be another topic's now.

    A partition does not say to which topic it belongs; all else does, or is checked against it.
    """
    files, is_mixed = dict(files), False
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        kind = random.choice(_KINDS)
        names = sorted(name for name in files if name.endswith(kind))
        if not names:
            continue
        name = random.choice(names)
        other = random.choice(names)
        match random.randrange(20):
            case 0:
                del files[name]
            case 1:
                files[name] = b""
            case 2:
                files[name], files[other] = files[other], files[name]
                is_mixed |= kind == ".log"
            case 3:
                files[name] = files[other]
                is_mixed |= kind == ".log"
            case _ if files[name]:
                files[name] = _changed(random, files[name])
            case _:
                files[name] = random.randbytes(100)
    return files, is_mixed
