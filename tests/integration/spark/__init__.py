"""The Spark data source, with real daemons and real Spark."""
