"""structlog through Python's logging: LogdHandler sends the JSON that structlog renders."""

import json
import logging
from pathlib import Path

import structlog

from logd import LogdHandler

records = json.loads(Path("records.json").read_text())

structlog.configure(
    processors=[structlog.stdlib.add_log_level, structlog.processors.JSONRenderer()],
    logger_factory=structlog.stdlib.LoggerFactory(),
)
handler = LogdHandler("127.0.0.1:1774", "structlog-json")
handler.setFormatter(logging.Formatter("%(message)s"))
logging.basicConfig(handlers=[handler], level="INFO")
logger = structlog.get_logger("shop").bind(name="any key")

for text in records:
    logger.info(text)
