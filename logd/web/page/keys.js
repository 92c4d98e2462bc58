// Shortcuts: one table that the keys and the help are made from.

import { make } from "./rows.js";

// A key, what it does for the help, and the name of the action. A row without an action is told only.
const KEYS = [
  [" ", "Space", "Pause, or follow the end", "toggle"],
  ["/", "/", "Filter", "filter"],
  ["h", "h", "Highlight", "mark"],
  ["g", "g", "Go to an offset or a time", "seek"],
  ["j", "j", "Next message", "next"],
  ["k", "k", "Message before", "previous"],
  ["o", "o", "Open or close the message", "open"],
  ["c", "c", "The message in context", "context"],
  ["Home", "Home", "First message of the topic", "first"],
  ["End", "End", "Follow the end", "end"],
  ["t", "t", "Find a topic", "topics"],
  ["w", "w", "Wrap long lines", "wrap"],
  ["u", "u", "Times in UTC or local", "utc"],
  ["d", "d", "Download", "download"],
  ["Escape", "Esc", "Cancel a search, leave a field, close", "escape"],
  ["?", "?", "This help", "help"],
];
const NEEDED = new Set(["Escape", "Home", "End"]); // these stay where single keys are off

export function describe(body) {
  for (const [, shown, text] of KEYS) {
    const row = make("tr");
    const key = make("td");
    key.append(make("kbd", "", shown));
    row.append(key, make("td", "", text));
    body.append(row);
  }
}

export function listen(actions, areOn) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    const isTyping = event.target.closest("input, textarea, select") !== null;
    if (isTyping && event.key !== "Escape") return;
    if (document.querySelector("dialog[open]")) return; // it has its own Escape
    const found = KEYS.find(([key]) => key === event.key);
    if (!found || (!areOn() && !NEEDED.has(event.key))) return;
    if (event.key === " " && event.target.closest("button, a, summary")) return; // it presses them
    event.preventDefault();
    actions[found[3]](event);
  });
}
