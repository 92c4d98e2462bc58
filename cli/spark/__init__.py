"""The script for `spark-submit`: see `log_cli.py`."""
