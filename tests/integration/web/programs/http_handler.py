"""Python's HTTPHandler: a urlencoded form for each record."""

import json
import logging
import logging.handlers
from pathlib import Path

records = json.loads(Path("records.json").read_text())

handler = logging.handlers.HTTPHandler("127.0.0.1:1775", "/topics/http-handler", method="POST")
logging.basicConfig(handlers=[handler], level="INFO")

for text in records:
    logging.info("%s", text)
