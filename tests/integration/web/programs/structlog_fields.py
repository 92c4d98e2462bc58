"""structlog through Python's logging: its values become fields of LogdHandler's JSON."""

import json
import logging
from pathlib import Path

import structlog

from logd import LogdHandler

records = json.loads(Path("records.json").read_text())

structlog.configure(
    processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
)
logging.basicConfig(handlers=[LogdHandler("127.0.0.1:1774", "structlog")], level="INFO")
logger = structlog.get_logger("shop").bind(order=17)

for n, text in enumerate(records):
    logger.info(text, n=n)
