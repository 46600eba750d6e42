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
export const SCANNED_BYTES_MAX = 64 << 20;
const AT_ONCE = 4; // Partitions: a browser has six connections to a node, and the page asks for other things, too.
const PAINT_MS = 200; // Between two paintings of what is followed: people read no faster.

/** Where records of a topic, or of one partition, are asked for. */
export const recordsPath = (topic, partition, params) =>
  withQuery(partition === "" ? path`topics/${topic}/records` : path`topics/${topic}/partitions/${partition}/records`, params);

/** How many records are asked for, whatever an address says. */
export const countOf = (text) => Math.max(1, Math.min(1000, Math.trunc(Number(text)) || 50));

/** `params` that a question comes to in one partition, where `most` records are asked for; of a whole topic while it is live. */
export function paramsOf({ from, at }, most) {
  if (from === "earliest") return { offset: "earliest", count: most };
  if (from === "offset") return { offset: at, count: most };
  if (from === "time") return { timestamp: new Date(at).toISOString(), count: most };
  return from === "live" ? { offset: "latest" } : { offset: `-${most}` };
}

/** The requests that a question to these partitions takes: {where}, one a partition unless one request has them all. */
export function requestsOf(topic, partitions, asked) {
  const { from, count, filter, partition } = asked;
  const params = paramsOf(asked, filter ? SCANNED_MAX : count);
  // The last N are those of each partition, but N from the beginning would be those of one.
  if (partition === "" && (from === "live" || from === "latest")) return [{ where: recordsPath(topic, "", params) }];
  return partitions.map((one) => ({ where: recordsPath(topic, one, params) }));
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
 * {records, seen, isCut, missing}: what a question finds in these partitions, `count` records at most that pass `test`.
 * `seen`: how many were looked at; `isCut`: not all that was asked for, since there are bounds to what a page reads;
 * `missing`: [{partition, error}] of those that could not be read. It throws where none could.
 */
export async function readRecords(topic, partitions, asked, { signal, test }) {
  const share = { shown: BYTES_MAX / partitions.length, scanned: SCANNED_BYTES_MAX / partitions.length };
  const answers = new Map();
  const missing = [];
  const left = [...partitions];
  // Each partition is asked by itself: one request for all of them would be filled by the first that answers.
  const work = async () => {
    for (let partition = left.shift(); partition !== undefined; partition = left.shift()) {
      try {
        answers.set(partition, await readPartition(topic, partition, asked, { signal, test, share }));
      } catch (error) {
        if (signal?.aborted) throw error;
        missing.push({ partition, error });
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (!answers.size) throw missing[0].error;
  const found = partitions.filter((one) => answers.has(one)).map((one) => answers.get(one));
  return {
    records: merged(found.map(({ records }) => records), asked),
    seen: found.reduce((sum, { seen }) => sum + seen, 0),
    isCut: found.some(({ isCut }) => isCut),
    missing: missing.sort((a, b) => a.partition - b.partition),
  };
}

/**
 * `count` records of partitions' lists: the newest first where the last ones are asked for, else the oldest first. Those
 * of one partition stay in the order of their offsets, whatever their times are.
 */
export function merged(lists, { from, count }) {
  const isLast = from === "latest";
  const left = lists.map((list) => (isLast ? [...list] : [...list].reverse())).filter((list) => list.length);
  const rows = [];
  while (left.length && rows.length < count) {
    const comesFirst = (a, b) => (isLast ? a.at(-1).timestamp > b.at(-1).timestamp : a.at(-1).timestamp < b.at(-1).timestamp);
    const next = left.reduce((best, list) => (comesFirst(list, best) ? list : best));
    rows.push(next.pop());
    if (!next.length) left.splice(left.indexOf(next), 1);
  }
  return rows;
}

async function readPartition(topic, partition, asked, { signal, test, share }) {
  let most = asked.filter ? SCANNED_MAX : asked.count;
  let isCut = false;
  for (;;) {
    const found = await readOnce(recordsPath(topic, partition, { ...paramsOf(asked, most), format: "binary" }), asked, { signal, test, share });
    isCut ||= found.isCut;
    // What broke off has the beginning of the last N: of fewer, the end is reached.
    if (asked.from !== "latest" || found.isWhole || most === 1) return { ...found, isCut };
    most = Math.max(1, Math.floor(found.seen / 2));
  }
}

/** One answer's records, `isWhole` where it was read to its end; else as many as there is room for. What ends it early is thrown. */
async function readOnce(where, { from, count }, { signal, test, share }) {
  const response = await send("GET", where, { accept: LINES, signal, patienceMs: PATIENCE_MS });
  const isLast = from === "latest";
  const records = [];
  const lengths = [];
  const found = { records, seen: 0, isCut: false, isWhole: false };
  let rest = "";
  let kept = 0;
  let scanned = 0;
  const drop = () => {
    records.shift();
    kept -= lengths.shift();
  };
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
        records.push(record);
        lengths.push(line.length);
        kept += line.length;
        if (isLast && records.length > count) drop();
        while (isLast && kept > share.shown && records.length > 1) {
          drop();
          found.isCut = true;
        }
        if (!isLast && (records.length >= count || kept > share.shown)) {
          found.isCut = records.length < count;
          return found;
        }
      }
      if (scanned > share.scanned) {
        found.isCut = true;
        return found;
      }
    }
    found.isWhole = true;
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
