// The API as this page asks it: always the node that served the page, below whatever prefix a proxy put in front.

export const ROOT = new URL("../", location.href);
const PATIENCE_MS = 20000;

/** The node, or a proxy before it, answered that it did not do it. */
export class Refusal extends Error {
  constructor(message, { status, code, kind, requestId }) {
    super(message);
    Object.assign(this, { status, code, kind, requestId });
  }
}

/** Nobody answered. */
export class Unreachable extends Error {}

// Of this console alone: another one, below another path of the same host, has a session of its own.
const KEPT = `milena session of ${ROOT.pathname}`;

/**
 * What requests carry of the reader's: {header, …}, or null. A session with `endsMs` is kept for this tab, so that a reload
 * does not ask again; one without is in the page's memory alone.
 */
export const credentials = {
  session: restored(),
  heard: new Set(),
  take(session) {
    this.session = session;
    if (session?.endsMs) sessionStorage.setItem(KEPT, JSON.stringify(session));
    else sessionStorage.removeItem(KEPT);
    for (const tell of this.heard) tell();
  },
  drop() {
    this.take(null);
  },
  listen(tell) {
    this.heard.add(tell);
    return () => this.heard.delete(tell);
  },
};

function restored() {
  try {
    const session = JSON.parse(sessionStorage.getItem(KEPT));
    return session?.endsMs > Date.now() ? session : null;
  } catch {
    return null;
  }
}

/** A name as it stands in a path. */
export function encoded(name) {
  // Browsers take these for steps in a path, however they are encoded.
  if (name === "." || name === "..") throw new Refusal(`a browser cannot ask for what is called “${name}”: use curl --path-as-is`, {});
  return encodeURIComponent(String(name).toWellFormed?.() ?? name);
}

/** A path below the API's root; names are encoded: path`topics/${topic}`. */
export const path = (words, ...names) => String.raw({ raw: words }, ...names.map(encoded));

export const withQuery = (base, params) => {
  const given = Object.entries(params).filter(([, value]) => value != null && value !== "");
  return given.length ? `${base}?${new URLSearchParams(given)}` : base;
};

export const urlOf = (where) => new URL(where, ROOT).href;

const own = (session) => (session ? { Authorization: session.header } : {});

/** The answer to a request, not read yet. */
export async function send(method, where, { body, type, accept, signal, headers = {}, patienceMs = PATIENCE_MS, isStream = false } = {}) {
  const session = credentials.session;
  const sent = { ...own(session), ...headers };
  if (type) sent["Content-Type"] = type;
  if (accept) sent.Accept = accept;
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), patienceMs);
  const either = signal ? AbortSignal.any([signal, late.signal]) : late.signal;
  let response;
  try {
    response = await fetch(urlOf(where), { method, headers: sent, body, signal: either, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable(late.signal.aborted ? `no answer within ${patienceMs / 1000} s` : "the node does not answer");
  }
  // A stream has no end that could be late.
  if (isStream) clearTimeout(timer);
  if (response.ok || response.status === 207) return response;
  // A token that has ended, or was deleted, is no use any more: who the reader is, is asked anew.
  if (response.status === 401 && session && credentials.session === session && !headers.Authorization) credentials.drop();
  const text = await response.text().catch(() => "");
  let told = {};
  try {
    told = JSON.parse(text);
  } catch {
    // A proxy's own page.
  }
  throw new Refusal(told.message ?? told.reason ?? `HTTP ${response.status} without a message of a node: is a proxy in between?`, {
    status: response.status,
    code: told.error_code,
    kind: response.headers.get("Milena-Error"),
    requestId: response.headers.get("X-Request-Id"),
  });
}

const RAW_MAX = 256 << 10;
const RAW_MS = 15000;

/** {status, headers, text, isCut} of any answer, refusals too; of one that goes on and on, its beginning. */
export async function sendRaw({ method, where, headers, body }) {
  const end = new AbortController();
  const late = setTimeout(() => end.abort(), RAW_MS);
  let told = null;
  try {
    const response = await fetch(urlOf(where), { method, headers: { ...own(credentials.session), ...headers }, body, signal: end.signal, cache: "no-store" });
    told = { status: response.status, headers: [...response.headers], text: "", isCut: false };
    for await (const piece of pieces(response.body.pipeThrough(new TextDecoderStream()))) {
      told.text += piece;
      if (told.text.length > RAW_MAX) break;
    }
    told.isCut = told.text.length > RAW_MAX;
    return told;
  } catch {
    if (told) return { ...told, isCut: true };
    throw new Unreachable(end.signal.aborted ? `no answer within ${RAW_MS / 1000} s` : "the node does not answer");
  } finally {
    clearTimeout(late);
    end.abort();
  }
}

/** A stream piece by piece; whoever stops early ends it. */
export async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) yield piece.value;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The JSON, or text, of an answer; null where it is empty. */
export async function ask(method, where, options = {}) {
  const response = await send(method, where, options);
  try {
    const text = await response.text();
    if (!text) return null;
    return /json/.test(response.headers.get("Content-Type")) ? JSON.parse(text) : text;
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Unreachable("the answer broke off");
  }
}

export const get = (where, signal) => ask("GET", where, { signal });
export const JSON_TYPE = "application/json";
export const post = (where, value, method = "POST") =>
  ask(method, where, value === undefined ? {} : { body: JSON.stringify(value), type: JSON_TYPE });

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
// What is pasted into a shell shows all that it holds.
const ascii = (json) => json.replace(/[^\x20-\x7e]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The same request for a shell. */
export function curl({ method = "GET", where, headers = {}, body }) {
  const words = ["curl", method === "GET" ? "-s" : `-s -X ${method}`];
  if (headers.Accept === "text/event-stream") words[1] = "-sN";
  // The reader's own token is not for the screen.
  if (credentials.session) words.push("-H", '"Authorization: Bearer $(cat milena.token)"');
  for (const [name, value] of Object.entries(headers)) words.push("-H", quoted(`${name}: ${value}`));
  if (body !== undefined) words.push("-d", quoted(ascii(body)));
  return [...words, quoted(urlOf(where))].join(" ");
}

/** Prometheus' text: what has no labels by its name, and the one role that this node has. */
export function parseMetrics(text) {
  const values = {};
  for (const [, name, labels, value] of text.matchAll(/^(?:milena_)?(\w+)(\{[^\n]*\})? (\S+)$/gm)) {
    if (!labels) values[name] = Number(value);
    else if (name === "raft_role" && value === "1.0") values.raft_role = /role="(\w+)"/.exec(labels)?.[1];
  }
  return values;
}
