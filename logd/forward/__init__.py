"""The forwarder: ships files as they grow, each line once and in order, to a topic.

content   the bytes of one file or archive, and what they are known by
lines     bytes to whole lines
sources   what is remembered: which file, how far; and the snapshot of it on disk
siblings  the rotated files and archives beside a file
survey    after a rotation or a start: which file is which, and what is still to be read
chain     one path with its rotated files, read oldest first
forms     a line to a JSON object
outbox    batches to the daemon, by way of a spool
forwarder the loop over all of it
"""
