"""The forwarder: ships growing files to a topic, each line once and in order.

forwarder        the main loop
paths            expands the globs of the user
path_reader      reads one path and its rotated files, oldest first
file_matching    identifies files after a start, a rotation or a truncation
rotated_files    lists and opens the rotated files of a path
file_content     the bytes of a plain or compressed file, and its fingerprint
lines            splits bytes into lines
line_formats     converts a line to a JSON object
registry         the known files and how far they were read
state_directory  the registry on disk, and its lock
spooled_output   sends batches through a spool
"""
