"""loguru with LogdHandler as its sink."""

import json
from pathlib import Path

from loguru import logger

from logd import LogdHandler

records = json.loads(Path("records.json").read_text())

handler = LogdHandler("127.0.0.1:1774", "loguru")
logger.remove()
logger.add(handler, format="{message}")

for n, text in enumerate(records):
    logger.bind(n=n).info("{}", text)
handler.close()
