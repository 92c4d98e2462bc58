// The view of one topic: its position, the loaded messages, and the requests in progress.
//
// Invariant: the list contains every matching message with low <= offset < high. While following, a
// stream appends messages; while paused, more messages are loaded when the user scrolls to either end.
// Opening another view cancels all requests.

import * as api from "./api.js";
import { patternsOf } from "./highlight.js";
import { MAX_ROWS } from "./message_list.js";
import { searchBackward, searchForward } from "./search.js";
import { grep } from "./url_state.js";
import { FollowStream } from "./follow_stream.js";
import { count } from "./text.js";

const PAGE_MESSAGES = 200; // loaded at a time
const CONTEXT_MESSAGES = 60; // loaded before the requested offset
const DRAW_MS = 50;
const MAX_LAG = 200_000; // messages; if following lags further, some are skipped
const MAX_UNSEEN = 100_000; // offsets that are searched when following resumes
const NEAR_PX = 400;
const END_PX = 30;

export class TopicView {
  // `handlers` has go(state), moved(offset), changed(), failed(error), searching(fraction or null, found),
  // arrived(number), notify(sentence).
  constructor(box, rows, handlers) {
    Object.assign(this, { box, rows, handlers, state: null, info: null, stream: null });
    this.work = new AbortController();
    this.reset();
    box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.live && this.toEnd()).observe(box);
    document.addEventListener("visibilitychange", () => this.setVisible(!document.hidden));
  }

  reset() {
    Object.assign(this, {
      low: 0, high: 0, since: 0, live: false, byScroll: false, fresh: 0, pending: [], drawing: 0,
      isOlder: false, isNewer: false, hasFailed: false, isRetryable: false, searches: new Set(),
    });
  }

  close() {
    this.work.abort();
    this.work = new AbortController();
    this.stream?.close();
    this.stream = null;
    clearTimeout(this.drawing);
    this.handlers.searching(null, 0);
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
    this.handlers.changed();
    try {
      const info = await api.topic(state.topic, signal);
      signal.throwIfAborted();
      this.info = info;
      const place = state.around ?? state.at;
      await (place === null ? this.openEnd() : this.openAt(Math.max(info.first, place)));
    } catch (error) {
      if (signal.aborted) return;
      this.hasFailed = true;
      this.isRetryable = !(error instanceof api.RequestError) || [404, 416, 503].includes(error.status);
      this.handlers.failed(error);
    }
    if (!signal.aborted) this.handlers.changed();
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
    this.countNew(this.info.next);
    await this.newer();
    if (signal.aborted) return;
    this.show(place);
    const isEmpty = !this.rows.last;
    await this.older(CONTEXT_MESSAGES);
    if (signal.aborted) return;
    // Otherwise the rows have kept their position, which the user may have changed meanwhile.
    if (isEmpty || this.state.around !== null) this.show(place);
  }

  // Scroll an offset to the top, or in a context view to the middle.
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

  async older(wanted = PAGE_MESSAGES) {
    if (this.isOlder || this.low <= this.info.first) return;
    this.isOlder = true;
    const [from, to] = [this.low, this.info.first];
    await this.search(from, to, (signal, searched) =>
      searchBackward(this.state.topic, this.query, to, from, wanted, signal, (some, low) => {
        searched(low, some.length);
        this.keepPosition(() => this.prepend(some, low));
      }, searched),
    );
    this.isOlder = false;
    this.handlers.changed();
  }

  prepend(messages, low) {
    const room = this.live ? MAX_ROWS - this.rows.all.length : MAX_ROWS;
    const fitting = room > 0 ? messages.slice(-room) : [];
    this.low = fitting.length < messages.length ? (fitting[0]?.offset ?? this.low) : low;
    if (this.rows.prepend(fitting)) this.high = this.rows.last.offset + 1;
  }

  async newer() {
    if (this.isNewer || this.live || this.high >= this.info.next) return;
    this.isNewer = true;
    const [from, until] = [this.high, this.info.next];
    await this.search(from, until, async (signal, searched) => {
      const known = await searchForward(
        this.state.topic, this.query, from, until, PAGE_MESSAGES, signal,
        (some) => {
          searched(some.at(-1).offset, some.length);
          this.keepPosition(() => this.append(some));
        },
        searched,
      );
      this.high = Math.max(this.high, known);
    });
    this.isNewer = false;
    this.handlers.changed();
  }

  append(messages) {
    this.high = messages.at(-1).offset + 1;
    if (this.rows.append(messages)) this.low = this.rows.first.offset;
  }

  // Run a search that can be cancelled, and report its progress.
  async search(from, to, run) {
    const own = new AbortController();
    const signal = AbortSignal.any([own.signal, this.work.signal]);
    const work = this.work;
    this.searches.add(own);
    let found = 0;
    try {
      await run(signal, (at, more = 0) => {
        found += more;
        if (work === this.work) this.handlers.searching(Math.abs(at - from) / Math.abs(to - from || 1), found);
      });
    } catch (error) {
      if (work.signal.aborted) throw error;
      if (own.signal.aborted) this.handlers.notify("Search cancelled.");
      else throw error;
    } finally {
      if (work === this.work) {
        this.searches.delete(own);
        this.isOlder = this.isNewer = false;
        this.handlers.searching(null, found);
      }
    }
  }

  cancel() {
    for (const search of this.searches) search.abort();
    return this.searches.size > 0;
  }

  // Change the list without moving the visible rows.
  keepPosition(change) {
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
    this.stream = new FollowStream(this.state.topic, this.query, from, {
      message: (message) => this.received(message),
      gap: (sentence) => this.gap(sentence),
      broken: () => this.check(),
      reopened: () => this.check(),
    });
  }

  // While paused, count new messages; without a filter, from the offsets.
  countNew(since) {
    this.stream?.close();
    this.stream = null;
    this.since = since;
    this.fresh = 0;
    if (this.query.grep) this.listen(since);
  }

  received(message) {
    if (!this.live) {
      this.fresh += 1;
    } else {
      this.high = message.offset + 1;
      this.pending.push(message);
      if (this.pending.length > 2 * MAX_ROWS) this.pending.splice(0, MAX_ROWS); // they would be removed anyway
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
      this.handlers.arrived(messages.length);
    }
    this.handlers.changed();
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
    this.countNew(this.high);
    this.handlers.moved(this.top()?.offset ?? this.high);
    this.handlers.changed();
  }

  follow() {
    if (this.live || !this.info) return;
    const most = this.query.grep ? MAX_UNSEEN : MAX_ROWS;
    if (this.state.around !== null || this.info.next - this.high > most || this.isNewer) {
      this.handlers.go({ ...this.state, at: null, around: null });
      return;
    }
    this.live = true;
    this.fresh = 0;
    this.listen();
    this.check(); // the daemon may have been restarted in the meantime
    this.toEnd();
    this.handlers.moved(null);
    this.handlers.changed();
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
  }

  // -- changes of the topic -----------------------------------------------------------------------

  sampled(now) {
    if (!now || !this.state) return;
    if (this.hasFailed && this.isRetryable) this.open(this.state); // the topic exists now
    if (!this.info) return;
    Object.assign(this.info, { first: now.first, next: now.next, bytes: now.bytes, partitions: now.partitions });
    this.low = Math.max(this.low, Math.min(now.first, this.high));
    if (!this.live && !this.query.grep) this.fresh = Math.max(0, now.next - this.since);
    if (this.live && !this.query.grep && now.next - this.high > MAX_LAG) this.skipTo(now.next - PAGE_MESSAGES);
    this.handlers.changed();
  }

  skipTo(offset) {
    this.draw();
    this.rows.clear();
    this.rows.note(`Skipped ${count(offset - this.high)} messages to keep up; use “Go to…” to see them.`);
    this.high = this.low = offset;
    this.stream.restart(offset);
  }

  // After a reconnect: check whether the topic was replaced or lost messages.
  async check() {
    const { info, work } = this;
    try {
      const now = await api.topic(this.state.topic, work.signal);
      if (work !== this.work || info !== this.info || !this.stream) return;
      this.info = now;
      if (now.id !== info.id) this.handlers.go({ ...this.state, at: null, around: null });
      else this.resumeAt(unchangedUntil(info, now, this.high));
    } catch {
      // The daemon does not respond yet; the next reconnect checks again.
    }
  }

  resumeAt(offset) {
    if (offset < this.high) {
      this.draw();
      this.rows.cutFrom(offset);
      this.rows.note(`The daemon lost the messages from offset ${count(offset)} on; these offsets are reused.`);
    } else if (this.live && this.high < this.info.first) {
      this.rows.note(`Offsets ${count(this.high)} to ${count(this.info.first - 1)} have expired.`);
      offset = this.info.first;
    } else return;
    this.high = offset;
    this.low = Math.min(this.low, offset);
    this.stream.restart(this.live ? offset : Math.min(offset, this.stream.next));
  }

  reconnected() {
    if (this.hasFailed && this.isRetryable) this.open(this.state);
    else if (this.stream?.isOpen && !document.hidden) this.stream.restart(); // its connection may be dead
  }

  // A hidden page closes its stream, because browsers limit the number of connections per host.
  setVisible(isVisible) {
    if (!this.stream) return;
    if (!isVisible) this.stream.close();
    else this.stream.restart();
  }

  // -- scrolling ----------------------------------------------------------------------------------

  // The first visible row.
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
    if (left < END_PX && this.byScroll && this.high >= this.info.next - MAX_ROWS) this.follow();
    else if (this.state.around === null) this.handlers.moved(this.top()?.offset ?? null);
  }

  async reached(load) {
    try {
      await load();
    } catch (error) {
      if (error.name !== "AbortError") this.handlers.notify(`Loading failed: ${error.message}`);
    }
  }
}

// The offset up to which a topic is unchanged after a restart.
function unchangedUntil(before, now, offset) {
  const limit = now.epoch > before.epoch ? Math.min(offset, now.epoch_began) : offset;
  return Math.min(limit, now.next);
}
