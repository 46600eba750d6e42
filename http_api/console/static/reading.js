// Records as bytes: asked for once, or followed as they come. Pure but for the requests.

import { Refusal, Unreachable, path, pieces, send, withQuery } from "./api.js";
import { follow } from "./events.js";
import { filterOf } from "./filter.js";
import { useEffect, useState } from "./vendor/hooks.js";

export const BYTES_MAX = 4 << 20; // Of one answer's text: what a page can show without getting slow.
export const TAIL_MAX = 200; // Records that a followed topic shows; older ones go.
export const LINES = "application/x-ndjson";
const PATIENCE_MS = 60000;
const SCANNED_MAX = 10000; // Records of each partition among which a filter looks.
const SCANNED_BYTES_MAX = 64 << 20;
const PAINT_MS = 200; // Between two paintings of what is followed: people read no faster.

/** Where records of a topic, or of one partition, are asked for. */
export const recordsPath = (topic, partition, params) =>
  withQuery(partition === "" ? path`topics/${topic}/records` : path`topics/${topic}/partitions/${partition}/records`, params);

/** How many records are asked for, whatever an address says. */
export const countOf = (text) => Math.max(1, Math.min(1000, Math.trunc(Number(text)) || 50));

/** `params` that a question comes to. Without a partition, the last N are those of each. */
export function paramsOf({ from, at, count, filter }) {
  // Among how many those are looked for that pass the filter.
  const most = filter ? SCANNED_MAX : count;
  if (from === "earliest") return { offset: "earliest", count: most };
  if (from === "offset") return { offset: at, count: most };
  if (from === "time") return { timestamp: new Date(at).toISOString(), count: most };
  return from === "live" ? { offset: "latest" } : { offset: `-${most}` };
}

/** The test of a question's filter, null: it has none; {error}: it is none. */
export function testOf(filter) {
  try {
    return { test: filter ? filterOf(filter) : null };
  } catch (error) {
    return { test: null, error };
  }
}

/**
 * {records, seen, isCut}: the answer's records that pass `test`, `count` of them at most: the last ones where `isLast`.
 * `isCut`: BYTES_MAX of them, or SCANNED_BYTES_MAX in all, were there before. What ends a stream early is thrown.
 */
export async function readRecords(topic, partition, params, { signal, test, count, isLast }) {
  const where = recordsPath(topic, partition, { ...params, format: "binary" });
  const response = await send("GET", where, { accept: LINES, signal, patienceMs: PATIENCE_MS });
  const found = { records: [], seen: 0, isCut: false };
  let rest = "";
  let kept = 0;
  let scanned = 0;
  try {
    for await (const piece of pieces(response.body.pipeThrough(new TextDecoderStream()))) {
      scanned += piece.length;
      const lines = (rest + piece).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const record = JSON.parse(line);
        if (record.offset === undefined) throw new Refusal(record.message ?? "the records ended early", {});
        found.seen++;
        if (test && !test(record)) continue;
        found.records.push(record);
        kept += line.length;
        if (test && isLast && found.records.length > count) found.records.shift();
      }
      found.isCut = kept > BYTES_MAX || rest.length > BYTES_MAX || scanned > SCANNED_BYTES_MAX;
      if (found.isCut || (test && !isLast && found.records.length >= count)) break;
    }
  } catch (error) {
    if (signal?.aborted || error instanceof Refusal) throw error;
    throw new Unreachable("the answer broke off");
  }
  return found;
}

/**
 * The newest records of a topic while `isOn`, the last first: {records, seen, error, isOpen}. However fast they come, only
 * those that stay are looked at, and no more often than the page can be painted.
 */
export function useTail(topic, partition, isOn, filter) {
  const [state, setState] = useState({ records: [], seen: 0 });
  useEffect(() => {
    if (!isOn) return undefined;
    const end = new AbortController();
    const tail = { lines: [], seen: 0, frame: 0 };
    const { test } = testOf(filter);
    setState({ records: [], seen: 0 });
    const say = (told) => !end.signal.aborted && setState((last) => ({ ...last, ...told }));
    const paint = () => {
      tail.frame = 0;
      say({ seen: tail.seen, records: tail.lines.map((line) => JSON.parse(line)).reverse() });
    };
    const onEvent = (name, data) => {
      if (name === "error") {
        end.abort();
        setState((last) => ({ ...last, isOpen: false, error: new Error(JSON.parse(data).message) }));
        return;
      }
      tail.seen++;
      if (!test || test(JSON.parse(data))) tail.lines.push(data);
      if (tail.lines.length > 2 * TAIL_MAX) tail.lines.splice(0, TAIL_MAX);
      tail.frame ||= setTimeout(() => {
        tail.lines.splice(0, tail.lines.length - TAIL_MAX);
        paint();
      }, PAINT_MS);
    };
    follow(recordsPath(topic, partition, { offset: "latest", format: "binary" }), {
      signal: end.signal,
      onEvent,
      onOpen: () => say({ isOpen: true, error: undefined }),
      onBreak: () => say({ isOpen: false, error: new Unreachable("the connection broke off; it is made again, behind the last record") }),
    }).catch((error) => say({ isOpen: false, error }));
    return () => {
      end.abort();
      clearTimeout(tail.frame);
    };
  }, [topic, partition, isOn, filter]);
  return state;
}
