// The state of the page in its URL, so that reload, links, back and forward work.
//
// `at` is the offset at the top of the list; without it the list follows new messages. `around` is the
// offset of the message that is shown in context, without the filter.

export function read(search = location.search) {
  const query = new URLSearchParams(search);
  return {
    topic: query.get("topic") ?? "",
    filter: query.get("filter") ?? "",
    regex: query.get("re") === "1",
    matchCase: query.get("case") === "1",
    mark: query.get("mark") ?? "",
    at: offset(query.get("at")),
    around: offset(query.get("around")),
  };
}

export function link(state) {
  const query = new URLSearchParams();
  const set = (name, value) => value !== "" && value !== null && query.set(name, value);
  set("topic", state.topic);
  set("filter", state.filter);
  set("re", state.regex ? "1" : "");
  set("case", state.matchCase ? "1" : "");
  set("mark", state.mark);
  set("at", state.at);
  set("around", state.around);
  const text = query.toString();
  return text ? `/?${text}` : "/";
}

export function push(state) {
  if (link(state) !== location.pathname + location.search) history.pushState(null, "", link(state));
}

export function replace(state) {
  if (link(state) !== location.pathname + location.search) {
    history.replaceState(null, "", link(state));
  }
}

// The parameters of a search on the server; none without a filter.
export function grep(state) {
  if (!state.filter || state.around !== null) return {};
  const pattern = state.regex ? state.filter : literal(state.filter);
  return state.matchCase ? { grep: pattern } : { grep: pattern, case: "0" };
}

// A regular expression that matches exactly this text.
export function literal(text) {
  return text.replace(/[\\^$.|?*+()[\]{}]/g, "\\$&");
}

function offset(text) {
  return text !== null && /^[0-9]{1,15}$/.test(text) ? Number(text) : null;
}
