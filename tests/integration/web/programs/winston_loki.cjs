// winston with winston-loki as its transport.
const { readFileSync } = require("node:fs");
const winston = require("winston");
const LokiTransport = require("winston-loki");

const records = JSON.parse(readFileSync("records.json", "utf8"));
const loki = new LokiTransport({
    host: "http://127.0.0.1:1775",
    json: true,
    labels: { app: "winston" },
    format: winston.format.json(),
    onConnectionError: (error) => console.error(error),
});
const logger = winston.createLogger({ transports: [loki] });
for (const text of records) logger.info(text);
logger.on("finish", () => loki.close());
logger.end();
