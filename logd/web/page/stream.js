// New messages as they come. The browser's EventSource connects again by itself and says which
// offset it had last; where it has given up (an answer that is no stream), this starts another one at
// the next offset. Either way nothing is lost and, since whoever listens knows the next offset, nothing
// comes twice.

import { followPath } from "./api.js";

const AGAIN_MS = 1000;

export class Stream {
  // `told` has message(object), gap(sentence), broken() and reopened().
  constructor(topic, query, from, told) {
    Object.assign(this, { topic, query, told, next: from, broken: false, timer: 0 });
    this.start();
  }

  start() {
    const source = new EventSource(followPath(this.topic, { ...this.query, from: this.next }));
    this.source = source;
    source.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.offset < this.next) return;
      this.next = message.offset + 1;
      this.told.message(message);
    };
    source.addEventListener("gap", ({ data }) => this.told.gap(JSON.parse(data)));
    source.onopen = () => {
      if (this.broken) this.told.reopened();
      this.broken = false;
    };
    source.onerror = () => {
      this.broken = true;
      this.told.broken();
      if (source.readyState === EventSource.CLOSED && !this.isClosed) {
        this.timer = setTimeout(() => this.restart(), AGAIN_MS);
      }
    };
  }

  get isOpen() {
    return this.source.readyState === EventSource.OPEN;
  }

  // From `next`, on a new connection.
  restart(next = this.next) {
    this.close();
    this.isClosed = false;
    this.next = next;
    this.start();
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.source.close();
  }
}
