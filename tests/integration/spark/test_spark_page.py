"""docs/spark.md is true: its programs print what stands below them, its tables are the code's.

The programs run in this process, on the session that is there, so `python` blocks of this page are
left out by test_readme.py.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from pyspark_logd.arrow_batches import COLUMNS
from pyspark_logd.options import ANY_READ, WRITE
from tests.integration.docs.test_docs import SPARK_PAGE, Fence, sections, table
from tests.integration.docs.test_readme import with_ports
from tests.support.daemon import running


@pytest.mark.parametrize("blocks", sections("python", "text", pages=[SPARK_PAGE]))
def test_programs(blocks: list[Fence], spark: Any, tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        port = daemon.address.rpartition(":")[2]
        printed = ""
        for block in blocks:
            if block.language == "text":
                assert printed.replace(port, "1774") == block.text
                continue
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(with_ports(block.text, daemon), SPARK_PAGE, "exec"), {})
            printed = output.getvalue()


def test_the_tables_of_options() -> None:
    heads = ("option", "default", "meaning")
    read, write = ([row[0] for row in table(SPARK_PAGE, *heads, nth=n)] for n in range(2))
    assert sorted(read) == sorted(ANY_READ)
    assert sorted(write) == sorted(WRITE)


def test_the_table_of_columns() -> None:
    rows = table(SPARK_PAGE, "column", "type")
    assert rows == [[name, kinds[0].simpleString()] for name, kinds in COLUMNS.items()]
