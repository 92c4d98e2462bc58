// Finding messages in both directions, without end and with little memory. The daemon searches
// forwards; backwards is windows of offsets, each larger than the last one while little is found.

import * as api from "./api.js";
import { MOST } from "./rows.js";

const FIRST_WINDOW = 4000;
const LARGEST_WINDOW = 1_000_000;

// Up to `wanted` messages from `from`, before `until`. `found(messages)` gets them as they come,
// `looked(offset)` how far it is. Returns the offset up to which all is known.
export async function forwards(topic, query, from, until, wanted, signal, found, looked) {
  let known = from, number = 0, some = [];
  const hand = () => {
    if (some.length) found(some);
    some = [];
  };
  for await (const line of api.messages(topic, { ...query, from, until, limit: wanted }, signal)) {
    if (line.progress) {
      hand();
      looked(line.progress.offset);
    } else {
      some.push(line);
      number += 1;
      known = line.offset + 1;
      if (some.length >= MOST) hand();
    }
  }
  hand();
  return number < wanted ? until : known;
}

// At least `wanted` messages before `before`, if there are so many from `first` on: the newest first,
// window by window, each in order. `found(messages, from)`: all from `from` on is known now.
export async function backwards(topic, query, first, before, wanted, signal, found, looked) {
  let high = before, number = 0, size = query.grep ? FIRST_WINDOW : wanted;
  while (high > first && number < wanted) {
    const low = Math.max(first, high - size);
    let some = [], isCut = false;
    for await (const line of api.messages(topic, { ...query, from: low, until: high, limit: 0 }, signal)) {
      if (line.progress) {
        looked(high - (line.progress.offset - low)); // as far as if it went backwards
      } else {
        some.push(line);
        if (some.length > 2 * MOST) [some, isCut] = [some.slice(-MOST), true];
      }
    }
    if (some.length > MOST) [some, isCut] = [some.slice(-MOST), true];
    number += some.length;
    high = isCut ? some[0].offset : low;
    found(some, high);
    looked(high);
    size = Math.min(LARGEST_WINDOW, size * 4);
  }
}
