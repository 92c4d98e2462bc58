"""Work on a data directory without a daemon: check, repair, read, back up."""
