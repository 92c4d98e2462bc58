// The page: its fields and buttons on one side, the topic that is shown on the other.

import * as api from "./api.js";
import { detail } from "./detail.js";
import { Dialogs } from "./dialogs.js";
import * as keys from "./keys.js";
import { patternsOf } from "./marks.js";
import { Rows } from "./rows.js";
import * as states from "./state.js";
import { count, several, short, size } from "./text.js";
import { draw, plot, Topics } from "./topics.js";
import { View } from "./view.js";

const TYPING_MS = 350;
const SAY_AGAIN_MS = 15_000; // how often a screen reader hears of new messages
const SHOW_SCAN_MS = 300;
const TOAST_MS = 4000;

const $ = (id) => document.getElementById(id);
const settings = {
  utc: localStorage.getItem("utc") === "1",
  wrap: localStorage.getItem("wrap") !== "0",
  keys: localStorage.getItem("keys") !== "0",
};

let state = states.read();
let place = null; // where the list is now, for the address
let placing = 0;

// -- saying things ----------------------------------------------------------------------------------

let toasting = 0;
function say(sentence) {
  $("announce").textContent = sentence;
  $("toast").textContent = sentence;
  $("toast").hidden = false;
  clearTimeout(toasting);
  toasting = setTimeout(() => { $("toast").hidden = true; }, TOAST_MS);
}

let arrived = 0, saidMs = -SAY_AGAIN_MS;
function tellArrivals(number) {
  arrived += number;
  if (performance.now() - saidMs < SAY_AGAIN_MS) return;
  $("announce").textContent = several(arrived, "new message");
  saidMs = performance.now();
  arrived = 0;
}

// -- the topic that is shown ------------------------------------------------------------------------

const rows = new Rows($("messages"), settings, (record, box) => {
  view.pause();
  detail(record, box, state, { context: (offset) => go({ ...state, around: offset, at: null }), said: say });
});
rows.tooSlow = () => say("Highlighting is off: this expression takes the browser too long.");

const view = new View($("box"), rows, {
  go,
  moved: remember,
  changed: show,
  failed,
  said: say,
  arrived: tellArrivals,
  scanning: showScan,
});

// Go somewhere else: a step that the back button takes back.
function go(to, how = states.push) {
  keepPlace();
  how(to);
  open();
}

function open() {
  clearTimeout(placing);
  const before = state;
  state = states.read();
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

// The address follows the list, without a step for the back button.
function remember(offset) {
  place = offset;
  clearTimeout(placing);
  placing = setTimeout(keepPlace, 200);
}

function keepPlace() {
  clearTimeout(placing);
  if (!state.topic || state.around !== null || place === state.at) return;
  state = { ...state, at: place };
  view.state = state;
  states.replace(state);
}

function failed(error) {
  console.debug(error);
  if (error instanceof api.Refused && error.code === "bad-request" && state.filter) {
    $("filter-error").textContent = error.message;
    $("filter").setAttribute("aria-invalid", "true");
  } else if (error instanceof api.Refused && error.code === "not-found") {
    rows.note(`There is no topic ${state.topic} now. It shows up here when somebody writes to it.`);
  } else if (error instanceof api.Refused) {
    rows.note(`The daemon says: ${error.message}`);
  }
  topics.look();
}

function show() {
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
  const fault = info.damages ? " · some of it is damaged, see log-cli check" : "";
  $("topic-facts").textContent =
    `offsets ${count(info.first)} to ${count(info.next)} · ${size(info.bytes)}${fault}`;
  showEdges(info);
}

function showEdges(info) {
  const atStart = view.low <= info.first;
  const isSearching = view.scans.size > 0;
  $("older").hidden = atStart || isSearching;
  $("older").textContent = state.filter && state.around === null ? "Search further back" : "Older";
  $("older-text").textContent = atStart && !view.hasFailed ? beginning(info) : "";
  const atEnd = !view.live && view.high >= info.next && rows.all.length > 0;
  $("newer-text").textContent = atEnd ? "End of the topic" : "";
}

function beginning(info) {
  if (rows.all.length) return info.first ? "Older messages have expired" : "Beginning of the topic";
  if (info.next === info.first) return "Nothing in this topic yet";
  return state.filter ? "Nothing matches so far" : "";
}

let scanTimer = 0;
function showScan(fraction, found) {
  if (fraction === null) {
    clearTimeout(scanTimer);
    scanTimer = 0;
    $("scan").hidden = true;
    return;
  }
  $("scan-bar").value = fraction;
  $("scan-text").textContent = `searched ${Math.floor(100 * fraction)} % · ${count(found)} found`;
  if (!scanTimer && $("scan").hidden) scanTimer = setTimeout(() => { $("scan").hidden = false; }, SHOW_SCAN_MS);
}

// -- topics -----------------------------------------------------------------------------------------

const messagesPlot = plot("messages"), bytesPlot = plot("bytes");
$("messages-plot").append(messagesPlot);
$("bytes-plot").append(bytesPlot);
let heardMs = 0;

const topics = new Topics($("topic-list"), $("topic-more"), {
  sampled(entries) {
    heardMs = Date.now();
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
  away() {
    const since = heardMs ? ` It last did at ${new Date(heardMs).toLocaleTimeString()}.` : "";
    $("away").textContent = `The daemon does not answer.${since} What is here stays; the rest comes when it is back.`;
    $("away").hidden = false;
    $("daemon").textContent = "away";
    $("daemon").className = "bad";
  },
  back(again) {
    $("away").hidden = true;
    $("daemon").textContent = "connected";
    $("daemon").className = "good";
    if (!again) return;
    say("The daemon is back.");
    if (state.topic) view.back();
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
  go({ ...states.read(""), topic: anchor.dataset.topic ?? "" });
});
addEventListener("popstate", open);
$("topic-search").addEventListener("input", (event) => topics.search(event.target.value));
$("show-topics").addEventListener("click", () => {
  const isOpen = document.body.classList.toggle("choosing");
  $("show-topics").setAttribute("aria-expanded", String(isOpen));
});
$("curl-line").textContent = `curl -d hello ${location.origin}/topics/app`;

// -- filter and highlight ---------------------------------------------------------------------------

let typing = 0, isSameWord = false; // what is typed in one go is one step back
function filtered() {
  clearTimeout(typing);
  const filter = $("filter").value.trim();
  if (filter === state.filter) return;
  go({ ...state, filter, at: view.live ? null : (state.around ?? place), around: null },
    isSameWord ? states.replace : states.push);
  isSameWord = true;
}
$("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(filtered, TYPING_MS);
});
$("filter").addEventListener("change", filtered);
$("filter").addEventListener("focus", () => { isSameWord = false; });
$("filter-form").addEventListener("submit", (event) => {
  event.preventDefault();
  filtered();
  isSameWord = false;
});

function toggled(name) {
  const to = { ...state, [name]: !state[name] };
  if (state.filter) go(to);
  else restyle(to);
}
$("regex").addEventListener("click", () => toggled("regex"));
$("match-case").addEventListener("click", () => toggled("matchCase"));

// What changes no message needs no loading.
function restyle(to) {
  state = to;
  view.state = to;
  states.replace(to);
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

function setting(name, button) {
  settings[name] = !settings[name];
  localStorage.setItem(name, settings[name] ? "1" : "0");
  showSettings();
  if (button === "utc") rows.showTimes();
  show();
}
function showSettings() {
  $("wrap").setAttribute("aria-pressed", String(settings.wrap));
  $("utc").setAttribute("aria-pressed", String(settings.utc));
  $("keys-on").checked = settings.keys;
}
$("wrap").addEventListener("click", () => setting("wrap"));
$("utc").addEventListener("click", () => setting("utc", "utc"));
$("keys-on").addEventListener("change", () => setting("keys"));

const dialogs = new Dialogs({ view, rows, settings, state: () => state, go });
$("seek-button").addEventListener("click", () => dialogs.seek());
$("download-button").addEventListener("click", () => dialogs.download());
$("help-button").addEventListener("click", () => $("help").showModal());
keys.describe($("help-keys").tBodies[0]);

// -- keyboard ---------------------------------------------------------------------------------------

const inTopic = (act) => () => state.topic && view.info && act();
const field = (id) => inTopic(() => { $(id).focus(); $(id).select(); });
keys.listen({
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
  wrap: inTopic(() => setting("wrap")),
  utc: inTopic(() => setting("utc", "utc")),
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
topics.look();
