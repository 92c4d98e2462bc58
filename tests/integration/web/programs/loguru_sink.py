"""loguru with LogdHandler as its sink."""

import json
from pathlib import Path

from loguru import logger

from logd import LogdHandler

records = json.loads(Path("records.json").read_text())

logger.remove()
logger.add(LogdHandler("127.0.0.1:1774", "loguru"), format=lambda record: "{message}")

for n, text in enumerate(records):
    logger.info("{}", text, n=n)
try:
    raise ValueError("boom")
except ValueError:
    logger.exception("failed")
