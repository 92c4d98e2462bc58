"""Is there what Spark needs? Where it is not, the other modules cannot be imported: this one says
why."""

from __future__ import annotations

import pytest

from tests.integration.spark.conftest import NO_SPARK


def test_spark_can_run_here() -> None:
    if NO_SPARK:
        print(NO_SPARK)
        pytest.skip(NO_SPARK)
