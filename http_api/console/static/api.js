// Requests of this page to the API: always to the node that served the page, below the prefix of a proxy, if any.

export const ROOT = new URL("../", location.href);
const PATIENCE_MS = 20000;

/** A refusal by the node, or by a proxy before it. */
export class Refusal extends Error {
  constructor(message, { status, code, kind, requestId }) {
    super(message);
    Object.assign(this, { status, code, kind, requestId });
  }
}

/** The node did not respond. */
export class Unreachable extends Error {}

// The key has the path, because another console below another path of the same host has its own session.
const KEPT = `milena session of ${ROOT.pathname}`;

/**
 * The reader's credentials for requests: {header, …}, or null. A session with `endsMs` is stored for this tab, so that a
 * reload does not ask again. A session without it is only in the page's memory.
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

/** A name, encoded for a path. */
export function encoded(name) {
  // Browsers treat these as path steps, even if they are encoded.
  if (name === "." || name === "..") throw new Refusal(`a browser cannot send a request for the name “${name}”: use curl --path-as-is`, {});
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

/** Send a request; return the response with its body unread. */
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
    throw new Unreachable(late.signal.aborted ? `no response within ${patienceMs / 1000} s` : "the node does not respond");
  }
  // The timeout is for responses with an end; a stream has none.
  if (isStream) clearTimeout(timer);
  if (response.ok || response.status === 207) return response;
  // The token has expired or was deleted: drop it, so that the page asks the reader to sign in again.
  if (response.status === 401 && session && credentials.session === session && !headers.Authorization) credentials.drop();
  const text = await response.text().catch(() => "");
  let told = {};
  try {
    told = JSON.parse(text);
  } catch {
    // A page of a proxy.
  }
  throw new Refusal(told.message ?? told.reason ?? `HTTP ${response.status} without a node's message: is there a proxy in between?`, {
    status: response.status,
    code: told.error_code,
    kind: response.headers.get("Milena-Error"),
    requestId: response.headers.get("X-Request-Id"),
  });
}

const RAW_MAX = 256 << 10;
const RAW_MS = 15000;

/** {status, headers, text, isCut} of any response, also of a refusal; for a response without an end, its beginning. */
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
    throw new Unreachable(end.signal.aborted ? `no response within ${RAW_MS / 1000} s` : "the node does not respond");
  } finally {
    clearTimeout(late);
    end.abort();
  }
}

/** The pieces of a stream. A caller that stops early cancels the stream. */
export async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) yield piece.value;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Send a request; return the response's JSON or text, null if it is empty. */
export async function ask(method, where, options = {}) {
  const response = await send(method, where, options);
  try {
    const text = await response.text();
    if (!text) return null;
    return /json/.test(response.headers.get("Content-Type")) ? JSON.parse(text) : text;
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Unreachable("the response broke off");
  }
}

export const get = (where, signal) => ask("GET", where, { signal });
export const JSON_TYPE = "application/json";
export const post = (where, value, method = "POST") =>
  ask(method, where, value === undefined ? {} : { body: JSON.stringify(value), type: JSON_TYPE });

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
// Escapes make every character visible that is pasted into a shell.
const ascii = (json) => json.replace(/[^\x20-\x7e]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** A request as a curl command. */
export function curl({ method = "GET", where, headers = {}, body }) {
  const words = ["curl", method === "GET" ? "-s" : `-s -X ${method}`];
  if (headers.Accept === "text/event-stream") words[1] = "-sN";
  // The screen must not show the reader's token.
  if (credentials.session) words.push("-H", '"Authorization: Bearer $(cat milena.token)"');
  for (const [name, value] of Object.entries(headers)) words.push("-H", quoted(`${name}: ${value}`));
  if (body !== undefined) words.push("-d", quoted(ascii(body)));
  return [...words, quoted(urlOf(where))].join(" ");
}

/** Parse Prometheus' text: the values without labels by name, and this node's Raft role. */
export function parseMetrics(text) {
  const values = {};
  for (const [, name, labels, value] of text.matchAll(/^(?:milena_)?(\w+)(\{[^\n]*\})? (\S+)$/gm)) {
    if (!labels) values[name] = Number(value);
    else if (name === "raft_role" && value === "1.0") values.raft_role = /role="(\w+)"/.exec(labels)?.[1];
  }
  return values;
}
