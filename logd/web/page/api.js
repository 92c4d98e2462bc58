// The HTTP routes of the daemon as functions. A response that is not 2xx throws a RequestError.

const TIMEOUT_MS = 10_000; // of requests that are answered immediately

export class RequestError extends Error {
  constructor(status, code, text) {
    super(text);
    this.status = status;
    this.code = code;
  }
}

export const topics = (signal) => json("/topics", signal);

export const topic = (name, signal) => json(`/topics/${encodeURIComponent(name)}`, signal);

export function messagesPath(name, query) {
  return `/topics/${encodeURIComponent(name)}/messages?${new URLSearchParams(query)}`;
}

export function followPath(name, query) {
  return `/topics/${encodeURIComponent(name)}/follow?${new URLSearchParams(query)}`;
}

// Each message, and periodically {progress: {offset, next}}. Stops when `signal` aborts.
export async function* messages(name, query, signal) {
  const path = messagesPath(name, { ...query, format: "ndjson", progress: "1" });
  const response = await checked(await fetch(path, { signal }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = []; // of an incomplete line; a long line arrives in many pieces
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = value.split("\n");
      parts.push(lines[0]);
      if (lines.length === 1) continue;
      yield JSON.parse(parts.join(""));
      for (const line of lines.slice(1, -1)) yield JSON.parse(line);
      parts = [lines.at(-1)];
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export async function oneMessage(name, offset, signal) {
  for await (const found of messages(name, { from: offset, until: offset + 1 }, signal)) {
    if ("offset" in found) return found;
  }
  throw new RequestError(404, "not-found", `offset ${offset} no longer exists`);
}

// The offset of the first message at this time or later; null if there is none.
export async function offsetAt(name, timeMs, signal) {
  const query = { since: `@${Math.max(0, Math.floor(timeMs))}`, limit: 1 };
  for await (const found of messages(name, query, signal)) {
    if ("offset" in found) return found.offset;
  }
  return null;
}

async function json(path, signal) {
  const limits = [AbortSignal.timeout(TIMEOUT_MS)];
  if (signal) limits.push(signal);
  const response = await fetch(path, { signal: AbortSignal.any(limits), cache: "no-store" });
  return (await checked(response)).json();
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new RequestError(
    response.status, body.error ?? "internal", body.text ?? `the daemon returned HTTP status ${response.status}`,
  );
}
