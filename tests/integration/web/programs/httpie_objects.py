"""httpie, called once for each record as from a shell, in one process to save its start."""

import json
import sys
from pathlib import Path

from httpie.core import main

for text in json.loads(Path("records.json").read_text()):
    arguments = ["POST", "http://127.0.0.1:1775/topics/app", f"message={text}"]
    if main(["http", "--ignore-stdin", "--check-status", "--quiet", *arguments]):
        sys.exit(f"httpie failed with {arguments}")
