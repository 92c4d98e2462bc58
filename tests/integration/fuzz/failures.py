"""What failed goes to a file, with the seed and a line that runs it again."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

from tests.integration.fuzz.random_inputs import SEED
from tests.support.daemon import ROOT
from tests.support.long_run import LONG

BUILD = ROOT / "build" / "fuzz"


class Failing(AssertionError):
    """An input broke a promise."""


def keep(kind: str, pieces: list[bytes], **more: Any) -> str:
    """Write an input down; how to run it, and all before it, again."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"{kind}-{SEED}.json"
    packed = [b64encode(piece).decode() for piece in pieces]
    path.write_text(json.dumps({"kind": kind, "seed": SEED, **more, "pieces": packed}, indent=1))
    target = "make test-fuzz" if LONG else "make fuzz"
    return (
        "this input alone: .venv/bin/python -m tests.integration.fuzz.replay "
        f"build/fuzz/{path.name}"
        f"\nall before it too: {target} SEED={SEED}"
    )


def kept(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    told = json.loads(path.read_text())
    return told, [b64decode(piece) for piece in told.pop("pieces")]
