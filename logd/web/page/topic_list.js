// The list of topics with sizes and plots of their rates, polled periodically. Polling also detects that
// the daemon does not respond, and that it responds again.

import * as api from "./api.js";
import { make } from "./message_list.js";
import { count, several, short, size } from "./text.js";

const POLL_MS = 1000;
const MAX_POLL_MS = 5000; // even if answers are slow: a view that falls behind learns it from here
const SAMPLES = 90; // a plot shows the last 90 seconds
const MAX_SHOWN = 300;
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

class TopicEntry {
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
      const grown = (name) => Math.max(0, now[name] - this.now[name]) / seconds; // messages may expire
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

export class TopicList {
  // `handlers` has sampled(entries by name), disconnected(), connected(isAgain).
  constructor(list, more, handlers) {
    Object.assign(this, { list, more, handlers, entries: new Map(), wanted: "", isDisconnected: null });
    this.timer = 0;
    this.isPolling = false;
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
  }

  // Poll now, then once a second; less often if responses are slow.
  async poll() {
    clearTimeout(this.timer);
    if (this.isPolling) return;
    this.isPolling = true;
    const startedMs = performance.now();
    try {
      this.update(await api.topics(), performance.now());
      if (this.isDisconnected !== false) this.handlers.connected(this.isDisconnected === true);
      this.isDisconnected = false;
    } catch (error) {
      if (!this.isDisconnected) this.handlers.disconnected(error);
      this.isDisconnected = true;
    }
    this.isPolling = false;
    if (document.hidden) return;
    const tookMs = performance.now() - startedMs;
    this.timer = setTimeout(() => this.poll(), Math.min(Math.max(POLL_MS, 10 * tookMs), MAX_POLL_MS));
  }

  update(found, atMs) {
    const names = new Set(found.map(({ topic }) => topic));
    for (const name of this.entries.keys()) if (!names.has(name)) this.forget(name);
    for (const now of found) {
      if (!this.entries.has(now.topic)) this.entries.set(now.topic, new TopicEntry(now.topic));
      this.entries.get(now.topic).sample(now, atMs);
    }
    this.show();
    this.handlers.sampled(this.entries);
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
    const shown = all.slice(0, MAX_SHOWN);
    const elements = shown.map(({ element }) => element);
    const now = this.list.children;
    if (elements.length !== now.length || elements.some((element, at) => element !== now[at])) {
      this.list.replaceChildren(...elements);
    }
    for (const entry of shown) entry.draw();
    this.select(this.selected);
    const hidden = all.length - shown.length;
    this.more.textContent = hidden
      ? `${count(hidden)} more topics; enter a part of the name above.`
      : this.entries.size && !all.length ? "No topic matches." : "";
  }
}
