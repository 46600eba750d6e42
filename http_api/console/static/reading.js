// Records as bytes: read once, or followed live. Pure, except for the requests.

import { Refusal, Unreachable, path, pieces, send, withQuery } from "./api.js";
import { follow } from "./events.js";
import { filterOf } from "./filter.js";
import { useEffect, useState } from "./vendor/hooks.js";

export const BYTES_MAX = 4 << 20; // Of one response's text: more would make a page slow.
export const TAIL_MAX = 200; // Records that a followed topic shows; older ones are dropped.
export const LINES = "application/x-ndjson";
const PATIENCE_MS = 60000;
const SCANNED_MAX = 10000; // Records of each partition to which a filter is applied.
export const SCANNED_BYTES_MAX = 64 << 20;
const AT_ONCE = 4; // Partitions. A browser has six connections to a node, and the page needs some for other requests.
const PAINT_MS = 200; // Between two updates of followed records: readers need no more.

/** The path for records of a topic, or of one partition. */
export const recordsPath = (topic, partition, params) =>
  withQuery(partition === "" ? path`topics/${topic}/records` : path`topics/${topic}/partitions/${partition}/records`, params);

/** The number of records to ask for, from an address that may contain anything. */
export const countOf = (text) => Math.max(1, Math.min(1000, Math.trunc(Number(text)) || 50));

/** Parameters of a question for at most `most` records of one partition, or of a whole topic if it is live. */
export function paramsOf({ from, at }, most) {
  if (from === "earliest") return { offset: "earliest", count: most };
  if (from === "offset") return { offset: at, count: most };
  if (from === "time") return { timestamp: new Date(at).toISOString(), count: most };
  return from === "live" ? { offset: "latest" } : { offset: `-${most}` };
}

/** The requests of a question: {where}, one per partition, unless one request has all partitions. */
export function requestsOf(topic, partitions, asked) {
  const { from, count, filter, partition } = asked;
  const params = paramsOf(asked, filter ? SCANNED_MAX : count);
  // A request for the last N returns N of each partition, but the first N could all be of one partition.
  if (partition === "" && (from === "live" || from === "latest")) return [{ where: recordsPath(topic, "", params) }];
  return partitions.map((one) => ({ where: recordsPath(topic, one, params) }));
}

/** {test}: the test of a question's filter, null without a filter; {error}: the filter cannot be parsed. */
export function testOf(filter) {
  try {
    return { test: filter ? filterOf(filter) : null };
  } catch (error) {
    return { test: null, error };
  }
}

/**
 * {records, seen, isCut, missing}: at most `count` records of these partitions that pass `test`. `seen`: the number of
 * records read. `isCut`: the limits of a page ended the reading early. `missing`: [{partition, error}] for partitions
 * that could not be read. Throws if no partition could be read.
 */
export async function readRecords(topic, partitions, asked, { signal, test }) {
  const share = { shown: BYTES_MAX / partitions.length, scanned: SCANNED_BYTES_MAX / partitions.length };
  const answers = new Map();
  const missing = [];
  const left = [...partitions];
  // Each partition has its own request: one request for all would be filled by the first that responds.
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
 * `count` records of the partitions' lists: the newest first for the question `latest`, otherwise the oldest first.
 * Records of one partition stay in the order of their offsets, even if their times are not.
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
    // A response that was cut has only the beginning of the last N. Ask for fewer, so that the end is reached.
    if (asked.from !== "latest" || found.isWhole || most === 1) return { ...found, isCut };
    most = Math.max(1, Math.floor(found.seen / 2));
  }
}

/** Read one response's records up to the limits; `isWhole`: read to its end. Throws if the response ends early. */
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
    throw new Unreachable("the response broke off");
  }
  return found;
}

/**
 * The newest records of a topic while `isOn`, the newest first: {records, seen, error, isOpen}. At any rate of records,
 * only those that are shown are parsed, and only once per update of the page.
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
      onBreak: () => say({ isOpen: false, error: new Unreachable("the connection broke off; the page reconnects behind the last record") }),
    }).catch((error) => say({ isOpen: false, error }));
    return () => {
      end.abort();
      clearTimeout(tail.frame);
    };
  }, [topic, partition, isOn, filter]);
  return state;
}
