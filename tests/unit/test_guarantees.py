"""What the documents and the mutations name is there: a promise without its test is none."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MUTATIONS = runpy.run_path(str(ROOT / "tests" / "mutations.py"))["MUTATIONS"]


def test_each_test_that_the_guarantees_name() -> None:
    named = re.findall(r"`(tests/\S+?)`", (ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_mutation_changes_one_place_and_names_a_test(mutation: Any) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    file, _, function = mutation.test.partition("::")
    assert f"def {function}" in (ROOT / file).read_text()
