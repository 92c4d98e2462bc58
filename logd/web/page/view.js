// One topic on the screen: where it is, what is loaded, and what is going on.
//
// Always: the list holds every wanted message with an offset from `low` up to, not including, `high`.
// Following means that a stream adds to the end of it; standing still means that more is asked for
// when the reader comes near an end. Whoever opens something else ends all that is under way.

import * as api from "./api.js";
import { patternsOf } from "./marks.js";
import { MOST } from "./rows.js";
import { backwards, forwards } from "./scans.js";
import { grep } from "./state.js";
import { Stream } from "./stream.js";
import { count } from "./text.js";

const SCREEN = 200; // messages that are loaded at a time
const ABOVE = 60; // and before a place that was asked for
const DRAW_MS = 50;
const KEEP_UP = 200_000; // messages behind the end, where following leaves some out
const SEARCH_AGAIN = 100_000; // offsets that following may search through unseen
const NEAR_PX = 400;
const END_PX = 30;

export class View {
  // `told` has go(state), moved(offset), changed(), failed(error), scanning(fraction or null, found),
  // arrived(number), said(sentence).
  constructor(box, rows, told) {
    Object.assign(this, { box, rows, told, state: null, info: null, stream: null });
    this.work = new AbortController();
    this.reset();
    box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.live && this.toEnd()).observe(box);
    document.addEventListener("visibilitychange", () => this.seen(!document.hidden));
  }

  reset() {
    Object.assign(this, {
      low: 0, high: 0, since: 0, live: false, byScroll: false, fresh: 0, pending: [], drawing: 0,
      isOlder: false, isNewer: false, hasFailed: false, mayWork: false, scans: new Set(),
    });
  }

  close() {
    this.work.abort();
    this.work = new AbortController();
    this.stream?.close();
    this.stream = null;
    clearTimeout(this.drawing);
    this.told.scanning(null, 0);
    this.reset();
    this.rows.clear();
  }

  async open(state) {
    this.close();
    const { signal } = this.work;
    if (this.state?.topic !== state.topic) this.info = null;
    this.state = state;
    this.query = grep(state);
    this.rows.isGapless = !this.query.grep;
    this.rows.setPatterns(patternsOf(state));
    this.told.changed();
    try {
      const info = await api.topic(state.topic, signal);
      signal.throwIfAborted();
      this.info = info;
      const place = state.around ?? state.at;
      await (place === null ? this.openEnd() : this.openAt(Math.max(info.first, place)));
    } catch (error) {
      if (signal.aborted) return;
      this.hasFailed = true;
      this.mayWork = !(error instanceof api.Refused) || [404, 416, 503].includes(error.status);
      this.told.failed(error);
    }
    if (!signal.aborted) this.told.changed();
  }

  async openEnd() {
    this.low = this.high = this.info.next;
    this.live = true;
    this.listen();
    await this.older();
    if (this.live) this.toEnd();
  }

  async openAt(place) {
    const { signal } = this.work;
    this.low = this.high = Math.min(place, this.info.next);
    this.count(this.info.next);
    await this.newer();
    if (signal.aborted) return;
    this.show(place);
    await this.older(ABOVE);
    if (signal.aborted) return;
    this.show(place);
  }

  // Bring a place to the top, or where its neighbours matter to the middle.
  show(place) {
    const record = this.rows.at(place) ?? this.rows.last;
    if (!record) return;
    const isTarget = this.state.around !== null;
    record.element.scrollIntoView({ block: isTarget ? "center" : "start" });
    if (isTarget) {
      record.element.classList.add("target");
      this.rows.select(record, document.activeElement === document.body);
    }
  }

  // -- loading more -------------------------------------------------------------------------------

  async older(wanted = SCREEN) {
    if (this.isOlder || this.low <= this.info.first) return;
    this.isOlder = true;
    const [from, to] = [this.low, this.info.first];
    await this.scan(from, to, (signal, looked) =>
      backwards(this.state.topic, this.query, to, from, wanted, signal, (some, low) => {
        looked(low, some.length);
        this.keeping(() => this.before(some, low));
      }, looked),
    );
    this.isOlder = false;
    this.told.changed();
  }

  before(messages, low) {
    const room = this.live ? MOST - this.rows.all.length : MOST;
    const fitting = room > 0 ? messages.slice(-room) : [];
    this.low = fitting.length < messages.length ? (fitting[0]?.offset ?? this.low) : low;
    if (this.rows.prepend(fitting)) this.high = this.rows.last.offset + 1;
  }

  async newer() {
    if (this.isNewer || this.live || this.high >= this.info.next) return;
    this.isNewer = true;
    const [from, until] = [this.high, this.info.next];
    await this.scan(from, until, async (signal, looked) => {
      const known = await forwards(
        this.state.topic, this.query, from, until, SCREEN, signal,
        (some) => {
          looked(some.at(-1).offset, some.length);
          this.keeping(() => this.behind(some));
        },
        looked,
      );
      this.high = Math.max(this.high, known);
    });
    this.isNewer = false;
    this.told.changed();
  }

  behind(messages) {
    this.high = messages.at(-1).offset + 1;
    if (this.rows.append(messages)) this.low = this.rows.first.offset;
  }

  // Run a search that can be cancelled, and say how far it is.
  async scan(from, to, run) {
    const own = new AbortController();
    const signal = AbortSignal.any([own.signal, this.work.signal]);
    const work = this.work;
    this.scans.add(own);
    let found = 0;
    try {
      await run(signal, (at, more = 0) => {
        found += more;
        if (work === this.work) this.told.scanning(Math.abs(at - from) / Math.abs(to - from || 1), found);
      });
    } catch (error) {
      if (work.signal.aborted) throw error;
      if (own.signal.aborted) this.told.said("Search cancelled.");
      else throw error;
    } finally {
      if (work === this.work) {
        this.scans.delete(own);
        this.isOlder = this.isNewer = false;
        this.told.scanning(null, found);
      }
    }
  }

  cancel() {
    for (const scan of this.scans) scan.abort();
    return this.scans.size > 0;
  }

  // Change the list without moving what is being read.
  keeping(change) {
    if (this.live) {
      change();
      this.toEnd();
      return;
    }
    const anchor = this.top();
    const before = anchor?.element.getBoundingClientRect().top;
    change();
    if (anchor?.element.isConnected) {
      this.box.scrollTop += anchor.element.getBoundingClientRect().top - before;
    }
  }

  // -- following ----------------------------------------------------------------------------------

  listen(from = this.high) {
    this.stream?.close();
    this.stream = new Stream(this.state.topic, this.query, from, {
      message: (message) => this.came(message),
      gap: (sentence) => this.gap(sentence),
      broken: () => this.check(),
      reopened: () => this.check(),
    });
  }

  // While the list stands still: how many are new since then? Without a filter the offsets say it.
  count(since) {
    this.stream?.close();
    this.stream = null;
    this.since = since;
    this.fresh = 0;
    if (this.query.grep) this.listen(since);
  }

  came(message) {
    if (!this.live) {
      this.fresh += 1;
    } else {
      this.high = message.offset + 1;
      this.pending.push(message);
      if (this.pending.length > 2 * MOST) this.pending.splice(0, MOST); // they would not stay anyway
    }
    if (!this.drawing) this.drawing = setTimeout(() => this.draw(), DRAW_MS);
  }

  draw() {
    clearTimeout(this.drawing);
    this.drawing = 0;
    const messages = this.pending;
    this.pending = [];
    if (messages.length) {
      if (this.rows.append(messages)) this.low = this.rows.first.offset;
      if (this.live) this.toEnd();
      this.told.arrived(messages.length);
    }
    this.told.changed();
  }

  gap(sentence) {
    if (!this.live) return;
    this.draw();
    this.rows.note(sentence);
  }

  pause(byScroll = false) {
    if (!this.live) return;
    this.draw();
    this.live = false;
    this.byScroll = byScroll;
    this.count(this.high);
    this.told.moved(this.top()?.offset ?? this.high);
    this.told.changed();
  }

  follow() {
    if (this.live || !this.info) return;
    const most = this.query.grep ? SEARCH_AGAIN : MOST;
    if (this.state.around !== null || this.info.next - this.high > most || this.isNewer) {
      this.told.go({ ...this.state, at: null, around: null });
      return;
    }
    this.live = true;
    this.fresh = 0;
    this.listen();
    this.check(); // while the list stood still the daemon may have been started anew
    this.toEnd();
    this.told.moved(null);
    this.told.changed();
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
  }

  // -- what the daemon says of the topic ----------------------------------------------------------

  sampled(now) {
    if (!now || !this.state) return;
    if (this.hasFailed && this.mayWork) this.open(this.state); // it is there now
    if (!this.info) return;
    Object.assign(this.info, { first: now.first, next: now.next, bytes: now.bytes, partitions: now.partitions });
    this.low = Math.max(this.low, Math.min(now.first, this.high));
    if (!this.live && !this.query.grep) this.fresh = Math.max(0, now.next - this.since);
    if (this.live && !this.query.grep && now.next - this.high > KEEP_UP) this.skipTo(now.next - SCREEN);
    this.told.changed();
  }

  skipTo(offset) {
    this.draw();
    this.rows.clear();
    this.rows.note(`${count(offset - this.high)} messages left out to keep up; go to an offset to see them.`);
    this.high = this.low = offset;
    this.stream.restart(offset);
  }

  // A stream broke, or is back: is the topic still what it was?
  async check() {
    const { info, work } = this;
    try {
      const now = await api.topic(this.state.topic, work.signal);
      if (work !== this.work || info !== this.info || !this.stream) return;
      this.info = now;
      if (now.id !== info.id) this.told.go({ ...this.state, at: null, around: null });
      else this.goOnAt(kept(info, now, this.high));
    } catch {
      // Still away; the next answer will tell.
    }
  }

  goOnAt(offset) {
    if (offset < this.high) {
      this.draw();
      this.rows.cutFrom(offset);
      this.rows.note(`Offsets from ${count(offset)} on were lost by the daemon, and are given anew.`);
    } else if (this.live && this.high < this.info.first) {
      this.rows.note(`Offsets ${count(this.high)} to ${count(this.info.first - 1)} have expired.`);
      offset = this.info.first;
    } else return;
    this.high = offset;
    this.low = Math.min(this.low, offset);
    this.stream.restart(this.live ? offset : Math.min(offset, this.stream.next));
  }

  back() {
    if (this.hasFailed && this.mayWork) this.open(this.state);
    else if (this.stream?.isOpen && !document.hidden) this.stream.restart(); // it may hang on a connection that is dead
  }

  // A page that nobody sees listens to nothing: browsers allow few connections, and tabs are many.
  seen(isSeen) {
    if (!this.stream) return;
    if (!isSeen) this.stream.close();
    else this.stream.restart();
  }

  // -- scrolling ----------------------------------------------------------------------------------

  // The first row that can be seen.
  top() {
    const edge = this.box.getBoundingClientRect().top + 4;
    const { all } = this.rows;
    let low = 0, high = all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (all[middle].element.getBoundingClientRect().bottom <= edge) low = middle + 1;
      else high = middle;
    }
    return all[low];
  }

  scrolled() {
    if (!this.info || this.hasFailed) return;
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    const left = scrollHeight - scrollTop - clientHeight;
    if (this.live && left > END_PX) this.pause(true);
    if (this.live || !this.rows.all.length) return;
    if (scrollTop < NEAR_PX) this.reached(() => this.older());
    if (left < NEAR_PX) this.reached(() => this.newer());
    if (left < END_PX && this.byScroll && this.high >= this.info.next - MOST) this.follow();
    else if (this.state.around === null) this.told.moved(this.top()?.offset ?? null);
  }

  async reached(load) {
    try {
      await load();
    } catch (error) {
      if (error.name !== "AbortError") this.told.said(`That could not be loaded: ${error.message}`);
    }
  }
}

// Up to which offset a topic still has what it had before a restart.
function kept(before, now, offset) {
  const limit = now.epoch > before.epoch ? Math.min(offset, now.epoch_began) : offset;
  return Math.min(limit, now.next);
}
