"""A client with a steady low rate: reports the latency of its requests as one line of JSON.

python -m bench.steady writer|reader ADDRESS SECONDS
"""

from __future__ import annotations

import json
import sys
import time

from logd import Client

TOPIC = "steady"
PER_SECOND = 200


def main() -> None:
    mode, address, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    message = b"x" * 99
    took: list[float] = []
    with Client(address) as client:
        client.push(TOPIC, [message])
        start = time.perf_counter()
        for i in range(int(seconds * PER_SECOND)):
            time.sleep(max(0.0, start + i / PER_SECOND - time.perf_counter()))
            begun = time.perf_counter()
            if mode == "writer":
                client.push(TOPIC, [message])
            else:
                client.tail(TOPIC, 1)
            took.append(time.perf_counter() - begun)
    took.sort()
    figures = {f"p{q}_us": took[len(took) * q // 100] * 1e6 for q in (50, 99)}
    print(json.dumps({"requests": len(took), **figures}))


if __name__ == "__main__":
    main()
