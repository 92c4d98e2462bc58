"""log-cli as a script for `spark-submit`, alone in its directory.

Spark inserts the directory of the submitted script at the front of the module search path. In the
directory of the commands, modules such as `stats` would hide modules of the same name.

    spark-submit --master spark://host:7077 .../cli/spark/log_cli.py archive /var/archive
"""

from __future__ import annotations

from cli.__main__ import main

if __name__ == "__main__":
    main()
