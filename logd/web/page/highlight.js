// Highlighting: finds the parts of texts that match the filter and the highlight. A worker processes
// one request at a time; a pattern that takes longer than TIMEOUT_MS is not tried again.

import { literal } from "./url_state.js";

const TIMEOUT_MS = 1500;

let worker = null;
let ready = null;
let last = Promise.resolve();
let number = 0;
const slow = new Set();

// The patterns of the filter and highlight fields. The regular expression syntax of the server differs
// slightly from the browser's; a pattern that only the server supports is not highlighted.
export function patternsOf(state) {
  const flags = state.matchCase ? "g" : "gi";
  const fields = [state.around === null ? state.filter : "", state.mark];
  return fields.flatMap((text, which) => {
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

// For each text [[start, end, pattern index], …]; null if it took too long.
export function findMatches(texts, patterns) {
  last = last.then(() => request(texts, patterns));
  return last;
}

async function request(texts, patterns) {
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
    }, TIMEOUT_MS);
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
  worker = new Worker("/page/highlight_worker.js");
  ready = new Promise((resolve) => {
    worker.onmessage = resolve;
  });
}
