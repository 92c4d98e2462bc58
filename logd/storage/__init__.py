"""How one topic is kept on disk: files, index, checkpoint, recovery, retention, group commit."""
