"""The Spark data source `logd`, for batch and streaming queries, reading and writing.

Spark loads the `DefaultSource` of installed packages whose names start with `pyspark_`, so users
do not need to register it.
"""

from __future__ import annotations

from pyspark_logd.errors import error_code as error_code
from pyspark_logd.errors import explain as explain
from pyspark_logd.source import DefaultSource as DefaultSource

__all__ = ["DefaultSource", "error_code", "explain"]
