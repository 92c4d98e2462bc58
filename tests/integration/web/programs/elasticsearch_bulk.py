"""elasticsearch-py: the bulk helper, and the requests that programs make before it."""

import json
from pathlib import Path

from elasticsearch import Elasticsearch, helpers

records = json.loads(Path("records.json").read_text())

client = Elasticsearch("http://127.0.0.1:1775")
assert client.ping()
assert client.info()["tagline"]

*records, last = records
half = len(records) // 2
documents = ({"_index": "elasticsearch-py", "message": text} for text in records[:half])
stored, errors = helpers.bulk(client, documents)
assert (stored, errors) == (half, [])

operations = []
for text in records[half:]:
    operations += [{"create": {}}, {"message": text}]
answer = client.bulk(index="elasticsearch-py", operations=operations)
assert not answer["errors"]
client.index(index="elasticsearch-py", document={"message": last})
client.close()
