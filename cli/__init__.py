"""log-cli: write, read and follow the topics of a logd from the command line."""
