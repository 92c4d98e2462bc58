"""The HTTP door, by real clients."""
