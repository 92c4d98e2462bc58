// Where patterns match. In a thread of its own, because a browser's regular expressions can take for
// ever, and then only this thread hangs; whoever asked ends it.

const MOST = 50; // marks in one text

function spans(text, patterns) {
  const found = [];
  patterns.forEach((pattern, which) => {
    pattern.lastIndex = 0;
    for (const match of text.matchAll(pattern)) {
      if (match[0].length) found.push([match.index, match.index + match[0].length, which]);
      if (found.length >= MOST) break;
    }
  });
  return found;
}

self.onmessage = ({ data }) => {
  const patterns = data.patterns.map(({ source, flags }) => new RegExp(source, flags));
  self.postMessage({ id: data.id, found: data.texts.map((text) => spans(text, patterns)) });
};
self.postMessage({ ready: true });
