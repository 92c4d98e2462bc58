"""A Spark session for programs of our own, and what is said where there can be none.

Spark runs on Java, 17 or later. Without one PySpark fails with a page of text; `spark_session` says
it in one line. Spark's Python processes are to run the Python that runs this.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from pyspark_logd.errors import LogdFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')
_INSTALL = "on Debian: apt-get install default-jre-headless"


def why_no_java() -> str | None:
    """Why Spark cannot run here; None where it can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        where = f"JAVA_HOME, {home}, has none" if home else "there is none"
        return f"Spark needs Java {JAVA} or later, and {where}; {_INSTALL}"
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = _VERSION.search(done.stderr)
    if found is None or int(found[1]) < JAVA:
        version = found[1] if found else "of an unknown version"
        return f"Spark needs Java {JAVA} or later, and {java} is {version}; {_INSTALL}"
    return None


def spark_session(name: str, master: str | None = None, **settings: str) -> SparkSession:
    """The session that is there already, or a new one; settings with _ for each dot.

    Without a master: what spark-submit said, or all cores of this machine.
    """
    if reason := why_no_java():
        raise LogdFailed(reason)
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    return builder.getOrCreate()
