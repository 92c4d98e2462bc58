"""What the HTTP listener is made of: routes, ingestion, reads, metrics, the web page."""
