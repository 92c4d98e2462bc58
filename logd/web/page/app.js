// The page: connects its fields and buttons with the topic view and the topic list.

import * as api from "./api.js";
import { detail } from "./message_detail.js";
import { Dialogs } from "./dialogs.js";
import * as shortcuts from "./shortcuts.js";
import { patternsOf } from "./highlight.js";
import { MessageList } from "./message_list.js";
import * as urlState from "./url_state.js";
import { count, several, short, size } from "./text.js";
import { draw, plot, TopicList } from "./topic_list.js";
import { TopicView } from "./topic_view.js";

const TYPING_MS = 350;
const ANNOUNCE_MS = 15_000; // between announcements of new messages to screen readers
const SHOW_SEARCH_MS = 300;
const TOAST_MS = 4000;

const $ = (id) => document.getElementById(id);
const settings = {
  utc: localStorage.getItem("utc") === "1",
  wrap: localStorage.getItem("wrap") !== "0",
  keys: localStorage.getItem("keys") !== "0",
};

let state = urlState.read();
let place = null; // offset at the top of the list, for the URL
let placeTimer = 0;

// -- notifications ----------------------------------------------------------------------------------

let toastTimer = 0;
function notify(sentence) {
  $("announce").textContent = sentence;
  $("toast").textContent = sentence;
  $("toast").hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { $("toast").hidden = true; }, TOAST_MS);
}

let arrived = 0, announcedMs = -ANNOUNCE_MS;
function announceArrivals(number) {
  arrived += number;
  if (performance.now() - announcedMs < ANNOUNCE_MS) return;
  $("announce").textContent = several(arrived, "new message");
  announcedMs = performance.now();
  arrived = 0;
}

// -- current topic ----------------------------------------------------------------------------------

const rows = new MessageList($("messages"), settings, (record, box) => {
  view.pause();
  detail(record, box, state, { context: (offset) => go({ ...state, around: offset, at: null }), notify });
});
rows.tooSlow = () => notify("Highlighting is disabled: the expression takes too long in this browser.");

const view = new TopicView($("box"), rows, {
  go,
  moved: remember,
  changed: showTopic,
  failed,
  notify,
  arrived: announceArrivals,
  searching: showSearch,
});

// Open another view; the back button returns from it.
function go(to, how = urlState.push) {
  keepPlace();
  how(to);
  open();
}

function open() {
  clearTimeout(placeTimer);
  const before = state;
  state = urlState.read();
  place = state.at;
  document.title = state.topic ? `${state.topic} · logd` : "logd";
  document.body.dataset.view = state.topic ? "topic" : "overview";
  document.body.classList.remove("choosing");
  $("show-topics").setAttribute("aria-expanded", "false");
  $("topic").hidden = !state.topic;
  $("overview").hidden = Boolean(state.topic);
  $("filter-error").textContent = "";
  $("filter").removeAttribute("aria-invalid");
  topics.select(state.topic);
  fillFields();
  if (state.topic) view.open(state);
  else view.close();
  if (state.topic && state.topic !== before.topic) $("topic-name").focus({ preventScroll: true });
}

function fillFields() {
  $("topic-name").textContent = state.topic;
  if ($("filter").value.trim() !== state.filter) $("filter").value = state.filter;
  if ($("mark").value !== state.mark) $("mark").value = state.mark;
  $("regex").setAttribute("aria-pressed", String(state.regex));
  $("match-case").setAttribute("aria-pressed", String(state.matchCase));
  $("context-bar").hidden = state.around === null;
  $("context-text").textContent = state.around === null
    ? "" : `Around offset ${count(state.around)}${state.filter ? ", without the filter" : ""}`;
}

// Store the position of the list in the URL, without a new history entry.
function remember(offset) {
  place = offset;
  clearTimeout(placeTimer);
  placeTimer = setTimeout(keepPlace, 200);
}

function keepPlace() {
  clearTimeout(placeTimer);
  if (!state.topic || state.around !== null || place === state.at) return;
  state = { ...state, at: place };
  view.state = state;
  urlState.replace(state);
}

function failed(error) {
  console.debug(error);
  if (error instanceof api.RequestError && error.code === "bad-request" && state.filter) {
    $("filter-error").textContent = error.message;
    $("filter").setAttribute("aria-invalid", "true");
  } else if (error instanceof api.RequestError && error.code === "not-found") {
    rows.note(`Topic ${state.topic} does not exist. Its first message creates it and appears here.`);
  } else if (error instanceof api.RequestError) {
    rows.note(`Error from the daemon: ${error.message}`);
  }
  topics.poll();
}

function showTopic() {
  const { info, live, fresh } = view;
  $("follow").textContent = live ? "❚❚ Pause" : "▶ Follow";
  $("follow").classList.toggle("live", live);
  const isReady = info !== null && info.topic === state.topic;
  $("fresh").hidden = !isReady || live || fresh === 0;
  $("fresh").textContent = `↓ ${count(fresh)} new`;
  $("box").classList.toggle("nowrap", !settings.wrap);
  if (!isReady) {
    $("topic-facts").textContent = $("older-text").textContent = $("newer-text").textContent = "";
    $("older").hidden = true;
    return;
  }
  const fault = info.damages ? " · damaged, run log-cli check" : "";
  $("topic-facts").textContent =
    `offsets ${count(info.first)} to ${count(info.next)} · ${size(info.bytes)}${fault}`;
  showEdges(info);
}

function showEdges(info) {
  const atStart = view.low <= info.first;
  const isSearching = view.searches.size > 0;
  $("older").hidden = atStart || isSearching;
  $("older").textContent = state.filter && state.around === null ? "Search older messages" : "Older";
  $("older-text").textContent = atStart && !view.hasFailed ? beginning(info) : "";
  const atEnd = !view.live && view.high >= info.next && rows.all.length > 0;
  $("newer-text").textContent = atEnd ? "End of the topic" : "";
}

function beginning(info) {
  if (rows.all.length) return info.first ? "Older messages have expired" : "Start of the topic";
  if (info.next === info.first) return "This topic has no messages";
  return state.filter ? "No matches" : "";
}

let searchTimer = 0;
function showSearch(fraction, found) {
  if (fraction === null) {
    clearTimeout(searchTimer);
    searchTimer = 0;
    $("scan").hidden = true;
    return;
  }
  $("scan-bar").value = fraction;
  $("scan-text").textContent = `${Math.floor(100 * fraction)}% searched · ${count(found)} found`;
  if (!searchTimer && $("scan").hidden) searchTimer = setTimeout(() => { $("scan").hidden = false; }, SHOW_SEARCH_MS);
}

// -- topics -----------------------------------------------------------------------------------------

const messagesPlot = plot("messages"), bytesPlot = plot("bytes");
$("messages-plot").append(messagesPlot);
$("bytes-plot").append(bytesPlot);
let answeredMs = 0;

const topics = new TopicList($("topic-list"), $("topic-more"), {
  sampled(entries) {
    answeredMs = Date.now();
    $("no-topics").hidden = entries.size > 0;
    showTotals([...entries.values()].map(({ now }) => now));
    $("topic-search").hidden = entries.size < 2;
    const entry = entries.get(state.topic);
    if (!entry) return;
    view.sampled(entry.now);
    draw(messagesPlot, entry.messages);
    draw(bytesPlot, entry.bytes);
    $("messages-rate").textContent = `${short(entry.messages.at(-1) ?? 0)} messages/s`;
    $("bytes-rate").textContent = `${size(entry.bytes.at(-1) ?? 0)}/s`;
  },
  disconnected() {
    const since = answeredMs ? ` Last response at ${new Date(answeredMs).toLocaleTimeString()}.` : "";
    $("away").textContent = `The daemon does not respond.${since} Reconnecting automatically.`;
    $("away").hidden = false;
    $("daemon").textContent = "disconnected";
    $("daemon").className = "bad";
  },
  connected(isAgain) {
    $("away").hidden = true;
    $("daemon").textContent = "connected";
    $("daemon").className = "good";
    if (!isAgain) return;
    notify("Reconnected to the daemon.");
    if (state.topic) view.reconnected();
  },
});

function showTotals(all) {
  const messages = all.reduce((sum, { first, next }) => sum + next - first, 0);
  const bytes = all.reduce((sum, one) => sum + one.bytes, 0);
  const facts = [several(all.length, "topic"), several(messages, "message"), size(bytes)];
  $("overview-facts").textContent = all.length ? facts.join(" · ") : "";
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a.topic, #home");
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go({ ...urlState.read(""), topic: anchor.dataset.topic ?? "" });
});
addEventListener("popstate", open);
$("topic-search").addEventListener("input", (event) => topics.search(event.target.value));
$("show-topics").addEventListener("click", () => {
  const isOpen = document.body.classList.toggle("choosing");
  $("show-topics").setAttribute("aria-expanded", String(isOpen));
});
$("curl-line").textContent = `curl -d hello ${location.origin}/topics/app`;

// -- filter and highlight ---------------------------------------------------------------------------

let typing = 0, isSameWord = false; // one history entry per word that is typed
function applyFilter() {
  clearTimeout(typing);
  const filter = $("filter").value.trim();
  if (filter === state.filter) return;
  go({ ...state, filter, at: view.live ? null : (state.around ?? place), around: null },
    isSameWord ? urlState.replace : urlState.push);
  isSameWord = true;
}
$("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(applyFilter, TYPING_MS);
});
$("filter").addEventListener("change", applyFilter);
$("filter").addEventListener("focus", () => { isSameWord = false; });
$("filter-form").addEventListener("submit", (event) => {
  event.preventDefault();
  applyFilter();
  isSameWord = false;
});

function toggleOption(name) {
  const to = { ...state, [name]: !state[name] };
  if (state.filter) go(to);
  else restyle(to);
}
$("regex").addEventListener("click", () => toggleOption("regex"));
$("match-case").addEventListener("click", () => toggleOption("matchCase"));

// Changes that affect only the appearance need no loading.
function restyle(to) {
  state = to;
  view.state = to;
  urlState.replace(to);
  fillFields();
  rows.setPatterns(patternsOf(to));
}
$("mark").addEventListener("input", (event) => restyle({ ...state, mark: event.target.value }));
$("mark-form").addEventListener("submit", (event) => event.preventDefault());

// -- buttons ----------------------------------------------------------------------------------------

const toggleFollow = () => (view.live ? view.pause() : view.follow());
$("follow").addEventListener("click", toggleFollow);
$("fresh").addEventListener("click", () => { view.follow(); $("box").focus(); });
$("older").addEventListener("click", () => view.reached(() => view.older()));
$("scan-cancel").addEventListener("click", () => view.cancel());
$("leave-context").addEventListener("click", () => history.length > 1 ? history.back() : go({ ...state, around: null }));

function toggleSetting(name, button) {
  settings[name] = !settings[name];
  localStorage.setItem(name, settings[name] ? "1" : "0");
  showSettings();
  if (button === "utc") rows.showTimes();
  showTopic();
}
function showSettings() {
  $("wrap").setAttribute("aria-pressed", String(settings.wrap));
  $("utc").setAttribute("aria-pressed", String(settings.utc));
  $("keys-on").checked = settings.keys;
}
$("wrap").addEventListener("click", () => toggleSetting("wrap"));
$("utc").addEventListener("click", () => toggleSetting("utc", "utc"));
$("keys-on").addEventListener("change", () => toggleSetting("keys"));

const dialogs = new Dialogs({ view, rows, settings, state: () => state, go });
$("seek-button").addEventListener("click", () => dialogs.seek());
$("download-button").addEventListener("click", () => dialogs.download());
$("help-button").addEventListener("click", () => $("help").showModal());
shortcuts.describe($("help-keys").tBodies[0]);

// -- keyboard ---------------------------------------------------------------------------------------

const inTopic = (act) => () => state.topic && view.info && act();
const field = (id) => inTopic(() => { $(id).focus(); $(id).select(); });
shortcuts.listen({
  toggle: inTopic(toggleFollow),
  filter: field("filter"),
  mark: field("mark"),
  seek: inTopic(() => dialogs.seek()),
  next: inTopic(() => { view.pause(); rows.step(1, view.top()); }),
  previous: inTopic(() => { view.pause(); rows.step(-1, rows.last); }),
  open: inTopic(() => rows.current && rows.toggle(rows.current)),
  context: inTopic(() => rows.current && go({ ...state, around: rows.current.offset, at: null })),
  first: inTopic(() => dialogs.toOffset(view.info.first)),
  end: inTopic(() => { view.follow(); }),
  topics() {
    document.body.classList.add("choosing");
    ($("topic-search").hidden ? $("topic-list").querySelector("a") : $("topic-search"))?.focus();
  },
  wrap: inTopic(() => toggleSetting("wrap")),
  utc: inTopic(() => toggleSetting("utc", "utc")),
  download: inTopic(() => dialogs.download()),
  escape(event) {
    if (view.cancel()) return;
    if (event.target.closest("input")) $("box").focus();
    else if (document.body.classList.contains("choosing")) document.body.classList.remove("choosing");
    else if (state.around !== null) history.back();
  },
  help: () => $("help").showModal(),
}, () => settings.keys);
$("messages").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.classList.contains("row")) rows.toggle(rows.current);
});

showSettings();
open();
topics.poll();
