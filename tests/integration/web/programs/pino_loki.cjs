// pino with pino-loki as its transport.
const { readFileSync } = require("node:fs");
const pino = require("pino");

const records = JSON.parse(readFileSync("records.json", "utf8"));
const transport = pino.transport({
    target: "pino-loki",
    options: { host: "http://127.0.0.1:1775", labels: { app: "pino-loki" } },
});
const logger = pino(transport);
transport.on("ready", () => {
    for (const text of records) logger.info(text);
    transport.end();
});
