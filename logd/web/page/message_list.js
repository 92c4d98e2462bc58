// The list of messages in the document. Invariants: at most MAX_ROWS rows, ordered by offset, each with
// only the beginning of its message; an opened message is requested again. So the size of the page is
// bounded.

import { findMatches } from "./highlight.js";
import { bytesOf, clock, count, escaped, level, pieces } from "./text.js";

export const MAX_ROWS = 2000;
const MAX_CHARACTERS = 2000; // of a message in the list
const HIGHLIGHT_ROWS = 200;

export function make(tag, name, text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}

// A slice of a long string keeps the complete string in memory; a copy does not.
const copied = (text) => new TextDecoder().decode(new TextEncoder().encode(text));

// Text with classes and highlights as elements, never as HTML.
export function fill(element, plain, runs, spans = [], names = []) {
  const edges = new Set([0, plain.length]);
  for (const { start, end } of runs) edges.add(start).add(end);
  for (const [start, end] of spans) edges.add(start).add(end);
  const cuts = [...edges].sort((a, b) => a - b);
  element.replaceChildren();
  let next = 0; // runs are in order
  for (let at = 0; at + 1 < cuts.length; at += 1) {
    const [start, end] = [cuts[at], cuts[at + 1]];
    while (next < runs.length && runs[next].end <= start) next += 1;
    const run = runs[next]?.start <= start ? runs[next] : undefined;
    const span = spans.find((one) => one[0] <= start && end <= one[1]);
    const text = plain.slice(start, end);
    if (!run && !span) element.append(text);
    else element.append(span ? wrap("mark", names[span[2]], text, run) : make("span", run.name, text));
  }
}

function wrap(tag, name, text, run) {
  const outer = make(tag, name);
  if (run) outer.append(make("span", run.name, text));
  else outer.textContent = text;
  return outer;
}

export class MessageList {
  // `list` is the <ol>; `settings` has utc; `opened(record, box)` fills in the details of a message.
  constructor(list, settings, opened) {
    this.list = list;
    this.settings = settings;
    this.opened = opened;
    this.all = [];
    this.current = null;
    this.patterns = [];
    this.isGapless = true;
    this.pending = [];
    this.isHighlighting = false;
    this.tooSlow = () => {};
    list.addEventListener("click", (event) => this.clicked(event));
  }

  get first() {
    return this.all[0];
  }

  get last() {
    return this.all.at(-1);
  }

  clear() {
    this.all = [];
    this.pending = [];
    this.current = null;
    this.list.replaceChildren();
  }

  setPatterns(patterns) {
    this.patterns = patterns;
    for (const record of this.all) fill(record.text, record.plain, record.runs);
    this.pending = [...this.all];
    this.highlight();
  }

  // Add rows at the end and remove the oldest ones; returns the number of removed rows.
  append(messages) {
    const records = messages.slice(-MAX_ROWS).map((message) => this.record(message));
    const before = this.last;
    for (const record of records) this.list.append(record.element);
    this.all.push(...records);
    this.noteGaps(before ? [before, ...records] : records);
    this.highlightLater(records);
    return this.drop(0, this.all.length - MAX_ROWS);
  }

  prepend(messages) {
    const records = messages.slice(-MAX_ROWS).map((message) => this.record(message));
    const after = this.first;
    this.list.prepend(...records.map(({ element }) => element));
    this.all.unshift(...records);
    this.noteGaps(after ? [...records, after] : records);
    this.highlightLater(records);
    return this.drop(MAX_ROWS, this.all.length - MAX_ROWS);
  }

  // Add a note where offsets are missing.
  noteGaps(records) {
    if (!this.isGapless) return;
    for (let at = 1; at < records.length; at += 1) {
      const [from, to] = [records[at - 1].offset + 1, records[at].offset - 1];
      if (from > to || records[at - 1].note) continue;
      const range = from === to ? `Offset ${count(from)} is` : `Offsets ${count(from)} to ${count(to)} are`;
      this.noteAfter(records[at - 1], `${range} missing: expired or lost.`);
    }
  }

  // Remove the rows from this offset on.
  cutFrom(offset) {
    const at = this.all.findIndex((record) => record.offset >= offset);
    if (at >= 0) this.drop(at, this.all.length - at);
  }

  drop(at, number) {
    if (number <= 0) return 0;
    for (const record of this.all.splice(at, number)) {
      record.element.remove();
      record.note?.remove();
      if (record === this.current) this.current = null;
    }
    return number;
  }

  // Add a sentence between rows; it is removed together with the row before it.
  note(text) {
    if (this.last) this.noteAfter(this.last, text);
    else this.list.replaceChildren(make("li", "note", text));
  }

  noteAfter(record, text) {
    record.note?.remove();
    record.note = make("li", "note", text);
    record.element.after(record.note);
  }

  record(message) {
    const isBytes = "message_base64" in message;
    const whole = isBytes ? escaped(bytesOf(message.message_base64)) : message.message;
    const record = { offset: message.offset, time: message.time, isBytes };
    const { plain, runs } = pieces(whole.length > MAX_CHARACTERS ? copied(whole.slice(0, MAX_CHARACTERS)) : whole);
    Object.assign(record, { plain, runs, isCut: whole.length > MAX_CHARACTERS });
    const element = make("li", `row ${level(plain)}`.trim());
    element.tabIndex = -1;
    element.dataset.offset = message.offset;
    const button = make("button", "offset", count(message.offset));
    button.tabIndex = -1;
    button.setAttribute("aria-expanded", "false");
    button.setAttribute("aria-label", `Open message ${message.offset}`);
    const time = make("time", "time", clock(message.time, this.settings.utc));
    time.dateTime = message.time;
    time.title = message.time;
    record.text = make("span", "text");
    fill(record.text, plain, runs);
    element.append(button, time, record.text);
    if (isBytes) element.append(make("span", "tag", "not UTF-8"));
    if (record.isCut) element.append(make("span", "tag", `${count(whole.length)} characters`));
    record.element = element;
    return record;
  }

  showTimes() {
    for (const { element, time } of this.all) {
      element.querySelector("time").textContent = clock(time, this.settings.utc);
    }
  }

  // -- current row --------------------------------------------------------------------------------

  at(offset) {
    let low = 0, high = this.all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.all[middle].offset < offset) low = middle + 1;
      else high = middle;
    }
    return this.all[low];
  }

  select(record, focus = true) {
    if (this.current) {
      this.current.element.classList.remove("current");
      this.current.element.tabIndex = -1;
    }
    this.current = record;
    record.element.classList.add("current");
    record.element.tabIndex = 0;
    if (focus) record.element.focus({ preventScroll: true });
    record.element.scrollIntoView({ block: "nearest" });
  }

  step(by, fallback) {
    const at = this.current ? this.all.indexOf(this.current) + by : this.all.indexOf(fallback);
    const record = this.all[Math.max(0, Math.min(this.all.length - 1, at))];
    if (record) this.select(record);
  }

  clicked(event) {
    const element = event.target.closest(".row");
    if (!element || event.target.closest(".detail")) return;
    if (!getSelection().isCollapsed && !event.target.closest("button")) return; // text is being selected
    const record = this.at(Number(element.dataset.offset));
    this.select(record, false);
    this.toggle(record);
  }

  toggle(record) {
    const button = record.element.querySelector(".offset");
    const box = record.element.querySelector(".detail");
    button.setAttribute("aria-expanded", String(!box));
    if (box) {
      box.remove();
      return;
    }
    const detail = make("div", "detail");
    record.element.append(detail);
    this.opened(record, detail);
  }

  // -- highlights ---------------------------------------------------------------------------------

  highlightLater(records) {
    if (!this.patterns.length) return;
    this.pending.push(...records);
    this.pending.splice(0, this.pending.length - MAX_ROWS);
    this.highlight();
  }

  async highlight() {
    if (this.isHighlighting) return;
    this.isHighlighting = true;
    while (this.patterns.length && this.pending.length) {
      const patterns = this.patterns;
      const records = this.pending.splice(-HIGHLIGHT_ROWS);
      const found = await findMatches(records.map(({ plain }) => plain), patterns);
      if (patterns !== this.patterns) continue;
      if (found === null) {
        this.patterns = [];
        this.tooSlow();
        break;
      }
      const names = patterns.map(({ name }) => name);
      records.forEach((record, at) => {
        if (found[at].length) fill(record.text, record.plain, record.runs, found[at], names);
      });
    }
    this.isHighlighting = false;
  }
}
