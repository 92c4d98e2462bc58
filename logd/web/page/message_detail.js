// The details of an opened message: its complete text and actions.

import * as api from "./api.js";
import { fill, make } from "./message_list.js";
import { link } from "./url_state.js";
import { bytesOf, count, hexDump, isJson, pieces, prettyJson } from "./text.js";

const MAX_SHOWN = 300_000; // characters or bytes; a link leads to the complete message

// `handlers` has context(offset) and notify(sentence).
export async function detail(record, box, state, handlers) {
  const bar = make("div", "bar");
  const button = (text, act) => {
    const made = make("button", "", text);
    made.addEventListener("click", act);
    bar.append(made);
  };
  button("Show in context", () => handlers.context(record.offset));
  let message = null;
  button("Copy", () => message && copy(message.message ?? message.message_base64, handlers));
  button("Copy link", () => {
    const place = { ...state, filter: "", at: null, around: record.offset };
    copy(location.origin + link(place), handlers);
  });
  const raw = make("a", "", "Raw message");
  raw.href = api.messagesPath(state.topic, { from: record.offset, until: record.offset + 1, format: "text" });
  raw.target = "_blank";
  raw.rel = "noopener";
  bar.append(raw, make("span", "when", record.time));
  const text = make("pre");
  text.tabIndex = 0;
  text.setAttribute("aria-label", `Message ${record.offset}`);
  box.append(bar, text);
  try {
    message = await api.oneMessage(state.topic, record.offset);
    show(text, message);
  } catch (error) {
    text.textContent = `The message could not be loaded: ${error.message}`;
  }
}

function show(element, message) {
  if ("message_base64" in message) {
    const bytes = bytesOf(message.message_base64);
    element.textContent = hexDump(bytes.subarray(0, MAX_SHOWN / 8)) + cut(bytes.length, MAX_SHOWN / 8, "bytes");
    return;
  }
  const text = message.message;
  if (text.length <= MAX_SHOWN && isJson(text)) {
    for (const piece of prettyJson(text)) {
      const shown = pieces(piece.text).plain;
      element.append(piece.name ? make("span", piece.name, shown) : shown);
    }
    return;
  }
  const { plain, runs } = pieces(text.slice(0, MAX_SHOWN));
  fill(element, plain + cut(text.length, MAX_SHOWN, "characters"), runs);
}

const cut = (all, most, what) => (all > most ? `\n… and ${count(all - most)} more ${what}` : "");

async function copy(text, handlers) {
  try {
    await navigator.clipboard.writeText(text);
    handlers.notify("Copied.");
  } catch {
    handlers.notify("The browser denied access to the clipboard.");
  }
}
