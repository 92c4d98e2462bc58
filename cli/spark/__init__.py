"""For `spark-submit`, see `log_cli.py`."""
