"""`python -m pyspark_logd`: check that Spark can run here. Exits with 1 if it cannot."""

from __future__ import annotations

import sys

from pyspark_logd.session import java_problem


def main() -> int:
    if reason := java_problem():
        print(reason, file=sys.stderr)
        return 1
    import pyspark

    print(f"Spark {pyspark.__version__} can run here and finds the data source logd")
    return 0


if __name__ == "__main__":
    sys.exit(main())
