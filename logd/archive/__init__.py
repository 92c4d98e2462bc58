"""Jobs that archive messages, search archived ones, and import them again.

An archive is a set of Parquet files and a manifest that lists them. The manifest, the files and the
delete hook do not need Spark; the jobs import it when they run. Nothing here imports the listeners
of the daemon or `cli`.
"""
