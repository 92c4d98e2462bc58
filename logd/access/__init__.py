"""Access control: the access file, authorization of requests, connection limits."""
