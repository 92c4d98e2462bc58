"""The clients against real daemons that are cut off, killed and restarted."""
