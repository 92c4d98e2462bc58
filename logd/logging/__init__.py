"""The handler for Python's `logging`."""
