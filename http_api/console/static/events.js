// Server-sent events by fetch. Unlike the browser's EventSource, fetch sends the reader's credentials, and delivers
// thousands of records in one piece instead of one event each.

import { Refusal, pieces, send } from "./api.js";

const PAUSE_MS = 1000;

/** An event without any fields yet. */
const nothing = () => ({ name: "message", data: [] });

/** Return a function that takes text in pieces and calls `onEvent(name, data, id)` for each whole event. Pure. */
export function eventParser(onEvent) {
  let rest = "";
  let event = nothing();
  const onLine = (line) => {
    if (line === "") {
      if (event.data.length) onEvent(event.name, event.data.join("\n"), event.id);
      event = nothing();
      return;
    }
    const at = line.indexOf(":");
    const field = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(line[at + 1] === " " ? at + 2 : at + 1);
    if (field === "data") event.data.push(value);
    else if (field === "id") event.id = value;
    else if (field === "event") event.name = value;
  };
  return (text) => {
    const lines = (rest + text).split(/\r?\n/);
    rest = lines.pop();
    lines.forEach(onLine);
  };
}

const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

/**
 * Follow a stream until `signal` is aborted. After a broken connection it reconnects behind the last event that it got.
 * Calls `onEvent(name, data)`, `onOpen()`, `onBreak()`; throws a refusal.
 */
export async function follow(where, { signal, onEvent, onOpen, onBreak }) {
  let last;
  while (!signal.aborted) {
    try {
      const headers = last === undefined ? {} : { "Last-Event-ID": last };
      const response = await send("GET", where, { accept: "text/event-stream", headers, signal, isStream: true });
      onOpen();
      const take = eventParser((name, data, id) => {
        last = id ?? last;
        onEvent(name, data);
      });
      for await (const text of pieces(response.body.pipeThrough(new TextDecoderStream()))) take(text);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refusal && error.status < 500 && error.status !== 429) throw error;
    }
    if (!signal.aborted) onBreak();
    await pause(PAUSE_MS, signal);
  }
}
