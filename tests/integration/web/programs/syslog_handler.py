"""Python's SysLogHandler over TCP."""

import json
import logging
import logging.handlers
import socket
from pathlib import Path

records = json.loads(Path("records.json").read_text())

handler = logging.handlers.SysLogHandler(("127.0.0.1", 1514), socktype=socket.SOCK_STREAM)
logging.basicConfig(handlers=[handler], level="INFO", format="%(name)s: %(message)s")

for text in records:
    logging.info("%s", text)
