// Formats of numbers, times, bytes and untrusted text. Pure: knows neither page nor API.

const COUNTS = new Intl.NumberFormat("en");
const NONE = "–";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const number = (value) => (value == null ? NONE : COUNTS.format(value));

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export function size(bytes) {
  if (bytes == null) return NONE;
  let unit = 0;
  for (; bytes >= 1024 && unit < UNITS.length - 1; unit++) bytes /= 1024;
  return `${unit && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${UNITS[unit]}`;
}

export function duration(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
}

/** 2026-01-31 12:00:00.123, in the reader's time zone. */
export function time(ms) {
  const date = new Date(ms);
  if (ms == null || Number.isNaN(date.getTime())) return NONE;
  const local = new Date(date.getTime() - date.getTimezoneOffset() * 60000);
  return Number.isNaN(local.getTime()) ? NONE : local.toISOString().replace("T", " ").replace("Z", "");
}

// Control and format characters reverse or hide text, separators end lines, and Hangul fillers are invisible.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0]/gu;
const PILE = /(\p{M}{4})\p{M}+/gu;

/** Text with every invisible character spelt out; `kept`: characters that stay. */
export const visible = (text, kept = "") =>
  String(text)
    .replace(PILE, "$1⟨…⟩")
    .replace(HIDDEN, (c) => (kept.includes(c) ? c : `⟨${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`));

/** Bytes of a base64 string; null stays null. */
export const bytesOf = (base64) => (base64 == null ? null : Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)));

export function base64Of(bytes) {
  let raw = "";
  for (const byte of bytes) raw += String.fromCharCode(byte);
  return btoa(raw);
}

/** Bytes as UTF-8 text; null if they are not UTF-8. */
export function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

const hex = (value, digits = 2) => value.toString(16).padStart(digits, "0");

/** Sixteen bytes per line: offset, bytes, and ASCII. */
export function hexDump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const shown = row.map((b) => (b > 31 && b < 127 ? String.fromCharCode(b) : "·")).join("");
    lines.push(`${hex(at, 6)}  ${row.map((b) => hex(b)).join(" ").padEnd(47)}  ${shown}`);
  }
  return lines.join("\n");
}

export const isJson = (text) => {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
};

const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const DEPTH_MAX = 40;

/** JSON without blanks and needless escapes, as nodes store it; numbers stay as they were written. */
export const compact = (json) => (json.match(TOKENS) ?? []).map((token) => (token[0] === '"' ? JSON.stringify(JSON.parse(token)) : token)).join("");

/** JSON on many lines. It formats the text, not parsed values: numbers keep all digits, and duplicate names stay. */
export function indented(json) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, DEPTH_MAX))}`;
  const tokens = json.match(TOKENS) ?? [];
  const parts = tokens.map((token, i) => {
    if (token === "{" || token === "[") {
      if (tokens[i + 1] === "}" || tokens[i + 1] === "]") return token;
      depth++;
      return token + line();
    }
    if (token === "}" || token === "]") {
      if (tokens[i - 1] === "{" || tokens[i - 1] === "[") return token;
      depth--;
      return line() + token;
    }
    if (token === ",") return token + line();
    return token === ":" ? ": " : token;
  });
  return parts.join("");
}
