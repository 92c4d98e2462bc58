"""Is everything here that these tests need? If not they are left out, and this says why."""

from __future__ import annotations

import pytest

from tests.integration.archive.conftest import WHY_NOT


def test_what_the_archive_needs_is_here() -> None:
    if WHY_NOT:
        pytest.skip(f"the tests of the archive are left out: {WHY_NOT}")
