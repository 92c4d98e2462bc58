"""Where the daemon of the integration tests is, and the repository's own files."""

from __future__ import annotations
