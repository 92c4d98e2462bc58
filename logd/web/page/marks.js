// Highlighting: which parts of texts match the filter and the highlight. One question at a time goes
// to a worker; a pattern that takes longer than PATIENCE_MS is not tried again.

import { literal } from "./state.js";

const PATIENCE_MS = 1500;

let worker = null;
let ready = null;
let last = Promise.resolve();
let number = 0;
const slow = new Set();

// For the fields of the state; [] where there is nothing to mark. The server's syntax differs in
// little from the browser's; a pattern that only the server understands filters and marks nothing.
export function patternsOf(state) {
  const flags = state.matchCase ? "g" : "gi";
  const asked = [state.around === null ? state.filter : "", state.mark];
  return asked.flatMap((text, which) => {
    if (!text) return [];
    let source = state.regex ? text.replaceAll("(?P<", "(?<") : literal(text);
    let all = flags;
    if (state.regex && source.startsWith("(?i)")) [source, all] = [source.slice(4), "gi"];
    try {
      new RegExp(source, all);
    } catch {
      return [];
    }
    return slow.has(source) ? [] : [{ source, flags: all, name: which ? "mark" : "hit" }];
  });
}

// For each text [[start, end, which pattern], …]; null where it took too long.
export function find(texts, patterns) {
  last = last.then(() => ask(texts, patterns));
  return last;
}

async function ask(texts, patterns) {
  if (patterns.some(({ source }) => slow.has(source))) return null;
  if (worker === null) start();
  await ready;
  const id = ++number;
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      for (const { source } of patterns) slow.add(source);
      worker.terminate();
      worker = null;
      resolve(null);
    }, PATIENCE_MS);
    worker.onmessage = ({ data }) => {
      if (data.id !== id) return;
      clearTimeout(timer);
      resolve(data.found);
    };
    const plain = patterns.map(({ source, flags }) => ({ source, flags }));
    worker.postMessage({ id, texts, patterns: plain });
  });
}

function start() {
  worker = new Worker("/page/marks_worker.js");
  ready = new Promise((resolve) => {
    worker.onmessage = resolve;
  });
}
