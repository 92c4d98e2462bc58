"""Numbers as short text with a unit."""

from __future__ import annotations


def count_text(count: float) -> str:
    """1234567 → 1.23M: three significant digits."""
    return _scaled(count, ("", "k", "M", "G", "T", "P", "E"))


def bytes_text(size: float) -> str:
    return _scaled(size, (" B", " kB", " MB", " GB", " TB", " PB", " EB"))


def _scaled(value: float, units: tuple[str, ...]) -> str:
    *smaller, largest = units
    for unit in smaller:
        if value < 999.5:
            return f"{_three_digits(value)}{unit}"
        value /= 1000
    return f"{_three_digits(value)}{largest}"


def _three_digits(value: float) -> str:
    if value == int(value) and value < 1000:
        return str(int(value))
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def duration_text(seconds: float) -> str:
    """93784 → 1d 2h: the two largest units."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
