"""Options and arguments that several commands share, and the inputs they describe."""
