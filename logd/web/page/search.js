// Searches messages in both directions with bounded memory. The daemon searches forwards only; a
// backward search uses windows of offsets, which grow while little is found.

import * as api from "./api.js";
import { MAX_ROWS } from "./message_list.js";

const FIRST_WINDOW = 4000;
const LARGEST_WINDOW = 1_000_000;

// Find up to `wanted` messages from `from` to before `until`. Calls `found(messages)` as they arrive and
// `searched(offset)` with the progress. Returns the offset before which everything was searched.
export async function searchForward(topic, query, from, until, wanted, signal, found, searched) {
  let known = from, number = 0, some = [];
  const flush = () => {
    if (some.length) found(some);
    some = [];
  };
  for await (const line of api.messages(topic, { ...query, from, until, limit: wanted }, signal)) {
    if (line.progress) {
      flush();
      searched(line.progress.offset);
    } else {
      some.push(line);
      number += 1;
      known = line.offset + 1;
      if (some.length >= MAX_ROWS) flush();
    }
  }
  flush();
  return number < wanted ? until : known;
}

// Find at least `wanted` messages between `first` and `before`, if there are that many. Calls
// `found(messages, from)` for each window, the newest one first: everything after `from` was searched.
export async function searchBackward(topic, query, first, before, wanted, signal, found, searched) {
  let high = before, number = 0, size = query.grep ? FIRST_WINDOW : wanted;
  while (high > first && number < wanted) {
    const low = Math.max(first, high - size);
    let some = [], isCut = false;
    for await (const line of api.messages(topic, { ...query, from: low, until: high, limit: 0 }, signal)) {
      if (line.progress) {
        searched(high - (line.progress.offset - low)); // as if the window was searched backward
      } else {
        some.push(line);
        if (some.length > 2 * MAX_ROWS) [some, isCut] = [some.slice(-MAX_ROWS), true];
      }
    }
    if (some.length > MAX_ROWS) [some, isCut] = [some.slice(-MAX_ROWS), true];
    number += some.length;
    high = isCut ? some[0].offset : low;
    found(some, high);
    searched(high);
    size = Math.min(LARGEST_WINDOW, size * 4);
  }
}
