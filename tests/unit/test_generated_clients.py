"""The blocking halves that are generated from asyncio sources are up to date."""

from __future__ import annotations

import pytest

from tools.async_to_sync import NAMES, ROOT, generated


@pytest.mark.parametrize("name", NAMES)
def test_the_generated_file_matches_its_source(name: str) -> None:
    assert (ROOT / f"{name}.py").read_text() == generated(name), "run make generate"
