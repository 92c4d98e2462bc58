"""python-logstash: JSON, a line for each record, over TCP."""

import json
import logging
from pathlib import Path

from logstash import TCPLogstashHandler

records = json.loads(Path("records.json").read_text())

handler = TCPLogstashHandler("127.0.0.1", 1514, version=1)
logging.basicConfig(handlers=[handler], level="INFO")

for text in records:
    logging.info("%s", text, extra={"order": 17})
