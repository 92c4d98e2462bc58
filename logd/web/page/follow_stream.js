// A stream of new messages. The browser's EventSource reconnects automatically and sends the last offset.
// If it gives up (the response was not a stream), another one is started at the next offset. No message
// is lost, and none is delivered twice, because offsets before the next one are ignored.

import { followPath } from "./api.js";

const RECONNECT_MS = 1000;

export class FollowStream {
  // `handlers` has message(object), gap(sentence), broken() and reopened().
  constructor(topic, query, from, handlers) {
    Object.assign(this, { topic, query, handlers, next: from, broken: false, timer: 0 });
    this.start();
  }

  start() {
    const source = new EventSource(followPath(this.topic, { ...this.query, from: this.next }));
    this.source = source;
    source.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.offset < this.next) return;
      this.next = message.offset + 1;
      this.handlers.message(message);
    };
    source.addEventListener("gap", ({ data }) => this.handlers.gap(JSON.parse(data)));
    source.onopen = () => {
      if (this.broken) this.handlers.reopened();
      this.broken = false;
    };
    source.onerror = () => {
      this.broken = true;
      this.handlers.broken();
      if (source.readyState === EventSource.CLOSED && !this.isClosed) {
        this.timer = setTimeout(() => this.restart(), RECONNECT_MS);
      }
    };
  }

  get isOpen() {
    return this.source.readyState === EventSource.OPEN;
  }

  // Start at `next` on a new connection.
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
