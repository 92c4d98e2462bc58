"""Everything the commands print: messages, reports, progress bars, notices."""
