// Converts messages to safe, readable text. Pure functions.
//
// The results are inserted as text only, never as HTML. ANSI colours are shown as colours, other control
// characters as symbols, and characters that change the text direction as code points.

const SPECIAL = /\x1b\[([0-9;]{0,64})m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])/g;
const MAX_RUNS = 100; // in one text; each one becomes an element
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

// {plain, runs}: the text to show, and its parts that have a class.
export function pieces(text) {
  const runs = [];
  let plain = "", from = 0, colour = "", colourFrom = 0;
  const endColour = () => {
    if (colour && plain.length > colourFrom) {
      runs.push({ start: colourFrom, end: plain.length, name: colour });
    }
    colourFrom = plain.length;
  };
  for (const found of text.matchAll(SPECIAL)) {
    plain += text.slice(from, found.index);
    from = found.index + found[0].length;
    endColour();
    if (found[1] !== undefined) {
      colour = sgr(found[1], colour);
      continue;
    }
    const shown = picture(found[0]);
    const before = runs.at(-1);
    if (before?.name === "odd" && before.end === plain.length) before.end += shown.length;
    else runs.push({ start: plain.length, end: plain.length + shown.length, name: "odd" });
    plain += shown;
    colourFrom = plain.length;
  }
  plain += text.slice(from);
  endColour();
  return { plain, runs: runs.slice(0, MAX_RUNS) };
}

function picture(character) {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `\u27e8${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

function sgr(parameters, before) {
  let name = before;
  for (const part of parameters.split(";")) {
    const number = Number(part);
    if (number === 0) name = "";
    else if (number >= 30 && number <= 37) name = `ansi-${COLOURS[number - 30]}`;
    else if (number >= 90 && number <= 97) name = `ansi-${COLOURS[number - 90]}`;
    else if (number === 39) name = "";
    else if (number === 1 && !name) name = "ansi-bold";
    else if (number === 38 || number === 48) return name; // other palettes are ignored
  }
  return name;
}

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

// Bytes that are not UTF-8: printable ASCII unchanged, everything else as \xNN.
export function escaped(bytes) {
  let out = "";
  for (const byte of bytes) {
    if (byte === 0x5c) out += "\\\\";
    else if (byte >= 0x20 && byte < 0x7f) out += String.fromCharCode(byte);
    else out += `\\x${byte.toString(16).padStart(2, "0")}`;
  }
  return out;
}

export function hexDump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = bytes.subarray(at, at + 16);
    const hex = Array.from(row, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = Array.from(row, (byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "."));
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text.join("")}`);
  }
  return lines.join("\n");
}

export function isJson(text) {
  const start = text.trimStart()[0];
  if (start !== "{" && start !== "[") return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

// [{text, name}]: indented JSON with unchanged numbers and names (JSON.parse would round large numbers
// and drop duplicate names).
export function prettyJson(text) {
  const out = [];
  const tokens = text.match(TOKEN) ?? [];
  let depth = 0;
  const put = (piece, name = "") => out.push({ text: piece, name });
  const line = () => put("\n" + "  ".repeat(Math.min(depth, 100)));
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    if (token === "{" || token === "[") {
      put(token);
      depth += 1;
      if (next !== "}" && next !== "]") line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      if (tokens[at - 1] !== "{" && tokens[at - 1] !== "[") line();
      put(token);
    } else if (token === ",") {
      put(",");
      line();
    } else if (token === ":") put(": ");
    else if (token[0] === '"') put(token, next === ":" ? "json-name" : "json-string");
    else put(token, "json-value");
  });
  return out;
}

const LEVELS = [
  ["error", /\b(error|err|fatal|critical|crit|panic|severe|emerg|alert)\b/i],
  ["warn", /\b(warn|warning)\b/i],
  ["debug", /\b(debug|trace)\b/i],
];

// Only the beginning of a message is examined: later, these words have other meanings.
export function level(text) {
  const start = text.slice(0, 120);
  for (const [name, pattern] of LEVELS) if (pattern.test(start)) return name;
  return "";
}

const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

export function size(bytes) {
  let value = bytes, unit = 0;
  while (value >= 999.5 && unit < SIZES.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${unit === 0 || value >= 99.95 ? Math.round(value) : value.toFixed(1)} ${SIZES[unit]}`;
}

export const count = (number) => number.toLocaleString("en-US");

export const several = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

export function short(number) {
  if (number < 9.95) return number === 0 ? "0" : number.toFixed(1);
  if (number < 999.5) return String(Math.round(number));
  const [value, unit] = number < 999_500 ? [number / 1000, "k"] : [number / 1e6, "M"];
  return `${value >= 99.95 ? Math.round(value) : value.toFixed(1)}${unit}`;
}

// 11-16 05:57:31.123 in local time or UTC; a time that Date cannot represent is returned unchanged.
export function clock(iso, utc) {
  const moment = new Date(iso);
  if (Number.isNaN(moment.getTime())) return iso;
  const local = utc ? moment : new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000);
  return local.toISOString().slice(5, 23).replace("T", " ");
}
