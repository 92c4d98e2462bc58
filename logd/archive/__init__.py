"""What becomes of messages when they leave the daemon: archived, searched, brought back.

The archive is Parquet files and a list of those that count. What needs no Spark (the list, the
files, the delete hook) imports none of it; the jobs import it when they run. Nothing of the
daemon's loop or sockets is imported here, and nothing of `cli`.
"""
