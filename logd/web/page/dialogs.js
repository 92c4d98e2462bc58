// The dialogs: go to an offset or a time, and download.

import * as api from "./api.js";
import { make } from "./message_list.js";
import { grep } from "./url_state.js";

const $ = (id) => document.getElementById(id);

export class Dialogs {
  // `page` has view, rows, settings, state() and go(state).
  constructor(page) {
    this.page = page;
    for (const dialog of document.querySelectorAll("dialog")) {
      dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
      dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    }
    const onSubmit = (id, act) => $(id).addEventListener("submit", (event) => {
      event.preventDefault();
      act(event.target);
    });
    onSubmit("seek-offset-form", () => this.seekOffset());
    onSubmit("seek-time-form", () => this.seekTime());
    onSubmit("download-form", (form) => this.startDownload(new FormData(form).get("form")));
    for (const button of document.querySelectorAll("[data-ago]")) {
      button.addEventListener("click", () => this.quick(button.dataset.ago));
    }
  }

  // -- go to --------------------------------------------------------------------------------------

  seek() {
    const { view, rows, settings } = this.page;
    const at = (view.live ? null : view.top()) ?? rows.last;
    $("seek-offset").value = at ? at.offset : "";
    $("seek-time").value = at ? this.inZone(new Date(at.time)) : "";
    $("seek-zone").textContent = settings.utc ? "(UTC)" : "(local)";
    $("seek-error").textContent = "";
    $("seek").showModal();
    $("seek-offset").select();
  }

  inZone(moment) {
    if (Number.isNaN(moment.getTime())) return "";
    const offsetMs = this.page.settings.utc ? 0 : moment.getTimezoneOffset() * 60_000;
    return new Date(moment.getTime() - offsetMs).toISOString().slice(0, 23);
  }

  seekOffset() {
    const offset = Number($("seek-offset").value);
    const { first, next } = this.page.view.info;
    if (offset >= first && offset < next) this.toOffset(offset);
    else $("seek-error").textContent = next > first
      ? `This topic has offsets ${first} to ${next - 1}.` : "This topic has no messages.";
  }

  seekTime() {
    this.toTime(Date.parse($("seek-time").value + (this.page.settings.utc ? "Z" : "")));
  }

  quick(ago) {
    if (ago === "first") this.toOffset(this.page.view.info.first);
    else if (ago === "end") this.toEnd();
    else this.toTime(Date.now() - 1000 * Number(ago));
  }

  toOffset(offset) {
    $("seek").close();
    this.page.go({ ...this.page.state(), at: offset, around: null });
    $("box").focus();
  }

  async toTime(timeMs) {
    try {
      const offset = await api.offsetAt(this.page.state().topic, timeMs);
      if (offset !== null) this.toOffset(offset);
      else $("seek-error").textContent = "There are no messages at or after this time.";
    } catch (error) {
      $("seek-error").textContent = `The search failed: ${error.message}`;
    }
  }

  toEnd() {
    $("seek").close();
    if (!this.page.view.live) this.page.go({ ...this.page.state(), at: null, around: null });
    $("box").focus();
  }

  // -- download -----------------------------------------------------------------------------------

  download() {
    const { topic, filter } = this.page.state();
    const what = filter ? `Messages that match “${filter}”` : "All messages";
    $("download-what").textContent = `${what} of ${topic} in this range:`;
    $("download-from").value = this.page.view.info.first;
    $("download-until").value = this.page.view.info.next;
    $("download").showModal();
  }

  startDownload(format) {
    const state = this.page.state();
    const [from, until] = [$("download-from").value, $("download-until").value];
    const query = grep({ ...state, around: null });
    const anchor = make("a");
    anchor.href = api.messagesPath(state.topic, { ...query, from, until, limit: 0, format });
    anchor.download = `${state.topic}-${from}.${format === "text" ? "log" : "ndjson"}`;
    anchor.click(); // the browser streams the response to a file
    $("download").close();
  }
}
