// Finds the matches of patterns. A worker, because a regular expression can take unlimited time in a
// browser; the page terminates the worker then.

const MAX_MATCHES = 50; // in one text

function findSpans(text, patterns) {
  const found = [];
  patterns.forEach((pattern, which) => {
    pattern.lastIndex = 0;
    for (const match of text.matchAll(pattern)) {
      if (match[0].length) found.push([match.index, match.index + match[0].length, which]);
      if (found.length >= MAX_MATCHES) break;
    }
  });
  return found;
}

self.onmessage = ({ data }) => {
  const patterns = data.patterns.map(({ source, flags }) => new RegExp(source, flags));
  self.postMessage({ id: data.id, found: data.texts.map((text) => findSpans(text, patterns)) });
};
self.postMessage({ ready: true });
