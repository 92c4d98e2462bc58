"""`python -m pyspark_logd`: is all here that Spark needs? One line, and exit 1 where it is not."""

from __future__ import annotations

import sys

from pyspark_logd.spark_session import why_no_java


def main() -> int:
    if reason := why_no_java():
        print(reason, file=sys.stderr)
        return 1
    import pyspark

    print(f"Spark {pyspark.__version__} can run here, and finds the data source logd")
    return 0


if __name__ == "__main__":
    sys.exit(main())
