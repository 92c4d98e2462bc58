// Keyboard shortcuts: one table for the key handler and the help.

import { make } from "./message_list.js";

// Key, its label and description in the help, and the name of the action.
const KEYS = [
  [" ", "Space", "Pause or resume following", "toggle"],
  ["/", "/", "Edit the filter", "filter"],
  ["h", "h", "Edit the highlight", "mark"],
  ["g", "g", "Go to an offset or a time", "seek"],
  ["j", "j", "Next message", "next"],
  ["k", "k", "Previous message", "previous"],
  ["o", "o", "Open or close the message", "open"],
  ["c", "c", "Show the message in context", "context"],
  ["Home", "Home", "Go to the oldest message", "first"],
  ["End", "End", "Follow new messages", "end"],
  ["t", "t", "Find a topic", "topics"],
  ["w", "w", "Wrap long lines", "wrap"],
  ["u", "u", "Switch between UTC and local time", "utc"],
  ["d", "d", "Download", "download"],
  ["Escape", "Esc", "Cancel the search, leave the field, or close", "escape"],
  ["?", "?", "Show this help", "help"],
];
const ALWAYS_ON = new Set(["Escape", "Home", "End"]); // even if single-key shortcuts are disabled

export function describe(body) {
  for (const [, shown, text] of KEYS) {
    const row = make("tr");
    const key = make("td");
    key.append(make("kbd", "", shown));
    row.append(key, make("td", "", text));
    body.append(row);
  }
}

export function listen(actions, isEnabled) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    const isTyping = event.target.closest("input, textarea, select") !== null;
    if (isTyping && event.key !== "Escape") return;
    if (document.querySelector("dialog[open]")) return; // the dialog handles Escape itself
    const found = KEYS.find(([key]) => key === event.key);
    if (!found || (!isEnabled() && !ALWAYS_ON.has(event.key))) return;
    if (event.key === " " && event.target.closest("button, a, summary")) return; // Space activates them
    event.preventDefault();
    actions[found[3]](event);
  });
}
