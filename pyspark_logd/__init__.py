"""The Spark data source: `spark.read.format("logd")`, and the same for streams and for writing.

Spark looks for packages whose names begin with `pyspark_` and takes their `DefaultSource`, so there
is nothing to register.
"""

from __future__ import annotations

from pyspark_logd.errors import error_code as error_code
from pyspark_logd.errors import explain as explain
from pyspark_logd.source import DefaultSource as DefaultSource

__all__ = ["DefaultSource", "error_code", "explain"]
