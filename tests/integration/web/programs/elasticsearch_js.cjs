// @elastic/elasticsearch: a bulk request, and the bulk helper.
const { readFileSync } = require("node:fs");
const { Client } = require("@elastic/elasticsearch");

const records = JSON.parse(readFileSync("records.json", "utf8"));
const client = new Client({ node: "http://127.0.0.1:1775" });

async function main() {
    await client.info();
    const last = records.pop();
    const half = Math.floor(records.length / 2);
    const operations = records.slice(0, half).flatMap((message) => [{ create: {} }, { message }]);
    const answer = await client.bulk({ index: "elasticsearch-js", operations });
    if (answer.errors) throw new Error(JSON.stringify(answer));

    const result = await client.helpers.bulk({
        datasource: records.slice(half).map((message) => ({ message })),
        flushBytes: 100000,
        concurrency: 1,
        onDocument: () => ({ index: { _index: "elasticsearch-js" } }),
    });
    if (result.successful !== records.length - half || result.failed) throw new Error(JSON.stringify(result));
    await client.index({ index: "elasticsearch-js", document: { message: last } });
    await client.close();
}

main();
