// The topics, looked at again and again: names, sizes, and rates as small plots. This is also how the
// page knows that the daemon is away, and that it is back.

import * as api from "./api.js";
import { make } from "./rows.js";
import { count, several, short, size } from "./text.js";

const PAUSE_MS = 1000;
const SAMPLES = 90; // a plot shows the last minute and a half
const SHOWN = 300;
const SVG = "http://www.w3.org/2000/svg";

export function plot(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", `plot ${name}`);
  svg.setAttribute("viewBox", `0 0 ${SAMPLES} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS(SVG, "polygon"), document.createElementNS(SVG, "polyline"));
  return svg;
}

export function draw(svg, values) {
  const most = Math.max(...values, 1e-9);
  const start = SAMPLES - values.length;
  const points = values.map((value, at) => `${start + at},${(19.5 - (18 * value) / most).toFixed(1)}`);
  const last = SAMPLES - 1;
  svg.firstChild.setAttribute("points", `${start},20 ${points.join(" ")} ${last},20`);
  svg.lastChild.setAttribute("points", points.join(" "));
}

class Entry {
  constructor(name) {
    this.name = name;
    this.messages = [];
    this.bytes = [];
    this.element = make("li");
    this.link = make("a", "topic");
    this.link.href = `/?topic=${encodeURIComponent(name)}`;
    this.link.dataset.topic = name;
    this.facts = make("span", "facts");
    this.rate = make("span", "rate");
    this.messagesPlot = plot("messages");
    this.bytesPlot = plot("bytes");
    const plots = make("span", "plots");
    plots.append(this.messagesPlot, this.bytesPlot);
    this.link.append(make("span", "name", name), this.facts, plots, this.rate);
    this.element.append(this.link);
  }

  sample(now, atMs) {
    if (this.now) {
      const seconds = Math.max(0.2, (atMs - this.atMs) / 1000);
      const grown = (name) => Math.max(0, now[name] - this.now[name]) / seconds; // some may expire
      this.add(grown("next"), grown("bytes"));
    }
    this.now = now;
    this.atMs = atMs;
  }

  add(messages, bytes) {
    this.messages.push(messages);
    this.bytes.push(bytes);
    if (this.messages.length > SAMPLES) [this.messages.shift(), this.bytes.shift()];
  }

  draw() {
    const [messages, bytes] = [this.messages.at(-1) ?? 0, this.bytes.at(-1) ?? 0];
    this.facts.textContent = `${several(this.now.next - this.now.first, "message")} · ${size(this.now.bytes)}`;
    this.rate.textContent = `${short(messages)}/s · ${size(bytes)}/s`;
    this.rate.classList.toggle("idle", messages === 0);
    draw(this.messagesPlot, this.messages);
    draw(this.bytesPlot, this.bytes);
  }
}

export class Topics {
  // `told` has sampled(entries by name), away(), back().
  constructor(list, more, told) {
    Object.assign(this, { list, more, told, entries: new Map(), wanted: "", isAway: null });
    this.timer = 0;
    this.looking = false;
    document.addEventListener("visibilitychange", () => document.hidden || this.look());
  }

  // Look now, then once a second; more seldom where the answer takes long.
  async look() {
    clearTimeout(this.timer);
    if (this.looking) return;
    this.looking = true;
    const startedMs = performance.now();
    try {
      this.take(await api.topics(), performance.now());
      if (this.isAway !== false) this.told.back(this.isAway === true);
      this.isAway = false;
    } catch (error) {
      if (!this.isAway) this.told.away(error);
      this.isAway = true;
    }
    this.looking = false;
    if (document.hidden) return;
    const tookMs = performance.now() - startedMs;
    this.timer = setTimeout(() => this.look(), Math.max(PAUSE_MS, 10 * tookMs));
  }

  take(found, atMs) {
    const names = new Set(found.map(({ topic }) => topic));
    for (const name of this.entries.keys()) if (!names.has(name)) this.forget(name);
    for (const now of found) {
      if (!this.entries.has(now.topic)) this.entries.set(now.topic, new Entry(now.topic));
      this.entries.get(now.topic).sample(now, atMs);
    }
    this.show();
    this.told.sampled(this.entries);
  }

  forget(name) {
    this.entries.get(name).element.remove();
    this.entries.delete(name);
  }

  search(text) {
    this.wanted = text.toLowerCase();
    this.show();
  }

  select(name) {
    for (const entry of this.entries.values()) {
      if (entry.name === name) entry.link.setAttribute("aria-current", "page");
      else entry.link.removeAttribute("aria-current");
    }
    this.selected = name;
  }

  show() {
    const all = [...this.entries.values()]
      .filter(({ name }) => name.toLowerCase().includes(this.wanted))
      .sort((a, b) => (a.name < b.name ? -1 : 1));
    const shown = all.slice(0, SHOWN);
    const elements = shown.map(({ element }) => element);
    const now = this.list.children;
    if (elements.length !== now.length || elements.some((element, at) => element !== now[at])) {
      this.list.replaceChildren(...elements);
    }
    for (const entry of shown) entry.draw();
    this.select(this.selected);
    const hidden = all.length - shown.length;
    this.more.textContent = hidden
      ? `${count(hidden)} more; type a part of the name above.`
      : this.entries.size && !all.length ? "No topic has that in its name." : "";
  }
}
