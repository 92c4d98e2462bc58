"""opensearch-py: the bulk helper, and the requests that programs make before it."""

import json
from pathlib import Path

from opensearchpy import OpenSearch, helpers

records = json.loads(Path("records.json").read_text())

client = OpenSearch("http://127.0.0.1:1775")
assert client.ping()
assert client.info()["version"]

*records, last = records
documents = ({"_index": "opensearch-py", "message": text} for text in records)
stored, errors = helpers.bulk(client, documents)
assert (stored, errors) == (len(records), [])
client.index(index="opensearch-py", body={"message": last})
client.close()
