// A message that was opened: all of it, readable, and what can be done with it.

import * as api from "./api.js";
import { fill, make } from "./rows.js";
import { link } from "./state.js";
import { bytesOf, count, hexDump, isJson, pieces, prettyJson } from "./text.js";

const MOST = 300_000; // characters or bytes on the screen; the rest is behind a link

// `told` has context(offset) and said(sentence).
export async function detail(record, box, state, told) {
  const bar = make("div", "bar");
  const button = (text, act) => {
    const made = make("button", "", text);
    made.addEventListener("click", act);
    bar.append(made);
  };
  button("In context", () => told.context(record.offset));
  let message = null;
  button("Copy", () => message && copy(message.message ?? message.message_base64, told));
  button("Copy link", () => {
    const place = { ...state, filter: "", at: null, around: record.offset };
    copy(location.origin + link(place), told);
  });
  const raw = make("a", "", "Whole message");
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
    text.textContent = `This message could not be had: ${error.message}`;
  }
}

function show(element, message) {
  if ("message_base64" in message) {
    const bytes = bytesOf(message.message_base64);
    element.textContent = hexDump(bytes.subarray(0, MOST / 8)) + cut(bytes.length, MOST / 8, "bytes");
    return;
  }
  const text = message.message;
  if (text.length <= MOST && isJson(text)) {
    for (const piece of prettyJson(text)) {
      const shown = pieces(piece.text).plain;
      element.append(piece.name ? make("span", piece.name, shown) : shown);
    }
    return;
  }
  const { plain, runs } = pieces(text.slice(0, MOST));
  fill(element, plain + cut(text.length, MOST, "characters"), runs);
}

const cut = (all, most, what) => (all > most ? `\n… and ${count(all - most)} more ${what}` : "");

async function copy(text, told) {
  try {
    await navigator.clipboard.writeText(text);
    told.said("Copied.");
  } catch {
    told.said("The browser did not allow copying.");
  }
}
