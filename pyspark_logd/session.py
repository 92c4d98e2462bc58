"""Starts a Spark session, or reports in one line why Spark cannot start.

Spark needs Java 17 or later; without it, PySpark fails with a page of text. The Python processes
of Spark use the interpreter of this process.
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


def java_problem() -> str | None:
    """Why there is no usable Java; None if there is one."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        where = f"JAVA_HOME={home} has none" if home else "none was found"
        return f"Spark needs Java {JAVA} or later, and {where}; {_INSTALL}"
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = _VERSION.search(done.stderr)
    if found is None or int(found[1]) < JAVA:
        version = f"version {found[1]}" if found else "an unknown version"
        return f"Spark needs Java {JAVA} or later, and {java} is {version}; {_INSTALL}"
    return None


def spark_session(name: str, master: str | None = None, **settings: str) -> SparkSession:
    """The existing session or a new one. In names of settings, _ stands for a dot.

    Without a master, Spark uses the one of spark-submit, or all cores of this machine.
    """
    if reason := java_problem():
        raise LogdFailed(reason)
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    return builder.getOrCreate()
