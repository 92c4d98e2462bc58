"""What `spark-submit` is given: log-cli in a file of its own, with no other modules beside it.

Spark puts the directory of a submitted file before all others in the search for modules, and that
of the commands has a `numbers.py`, which NumPy would take for Python's own.

    spark-submit --master spark://host:7077 .../cli/spark/log_cli.py archive /var/archive
"""

from __future__ import annotations

from cli.__main__ import main

if __name__ == "__main__":
    main()
