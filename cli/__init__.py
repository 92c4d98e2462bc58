"""log-cli: write, read and follow logd topics from the command line. One file per command."""
