"""The HTTP listener, with real clients."""
