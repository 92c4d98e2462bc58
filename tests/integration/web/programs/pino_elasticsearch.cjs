// pino with pino-elasticsearch as its stream.
const { readFileSync } = require("node:fs");
const pino = require("pino");
const pinoElastic = require("pino-elasticsearch");

const records = JSON.parse(readFileSync("records.json", "utf8"));
const stream = pinoElastic({
    node: "http://127.0.0.1:1775",
    index: "pino",
    flushBytes: 4000000,
    flushInterval: 1000,
});
stream.on("insertError", (error) => console.error(error));
stream.on("error", (error) => console.error(error));
const logger = pino(stream);

for (const text of records) logger.info(text);
stream.end();
