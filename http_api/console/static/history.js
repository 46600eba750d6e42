// The last hour in the nodes' memory: charts of rates, latency, disk and lag, and the partitions with the most traffic.

import { withQuery } from "./api.js";
import { Chart } from "./chart.js";
import { useAnswer } from "./live.js";
import { number, plural, size } from "./text.js";
import { Answered, Table, Topic, html } from "./ui.js";

const EVERY_MS = 20000;

export const rate = (value) => (value === null ? "–" : `${number(Math.round(value))}/s`);
export const bytesRate = (value) => (value === null ? "–" : `${size(value)}/s`);
const ms = (value) => (value === null ? "–" : `${number(Math.round(value * 10) / 10)} ms`);

const RECORDS = { title: "Records in and out", names: { records_in_per_second: "in", records_out_per_second: "out" }, show: rate };
const BYTES = { title: "Bytes in and out", names: { bytes_in_per_second: "in", bytes_out_per_second: "out" }, show: bytesRate, isBytes: true };
const COMMIT = { title: "Commit of acks=all, 99th percentile", names: { commit_ms_p99: "the slowest node" }, show: ms };

export const OF_CLUSTER = [RECORDS, BYTES, { ...COMMIT, join: (a, b) => Math.max(a, b) }];
export const OF_TOPIC = [RECORDS, BYTES];
export const OF_GROUP = [{ title: "Lag", names: { lag: "records behind" }, show: (value) => number(value === null ? null : Math.round(value)) }];
export const OF_NODES = [
  { title: "Records in", names: { records_in_per_second: "" }, show: rate },
  { title: "Records out", names: { records_out_per_second: "" }, show: rate },
  { title: "Bytes in", names: { bytes_in_per_second: "" }, show: bytesRate, isBytes: true },
  { title: "Bytes out", names: { bytes_out_per_second: "" }, show: bytesRate, isBytes: true },
  { title: COMMIT.title, names: { commit_ms_p99: "" }, show: ms },
  { title: "Sync of a log, 99th percentile", names: { sync_ms_p99: "" }, show: ms },
  { title: "Free disk", names: { disk_free_bytes: "" }, show: size, isBytes: true },
];

/** The history of the nodes; `of` may name a topic or a group. */
export const useHistory = (of = {}) => useAnswer(withQuery("history", of), EVERY_MS);
export const historyCall = (of = {}) => withQuery("history", of);

/** The newest known value of a series, by node. */
export const newest = (answer, name) =>
  new Map((answer.data?.series ?? []).filter((one) => one.name === name && one.values.at(-1) !== null).map((one) => [one.node_id, one.values.at(-1)]));

/** Sums point by point. A sum is unknown if a series that was known before is unknown: a missing node is not zero. */
export function sums(all) {
  const isKnown = all.map(() => false);
  return all[0].map((_, at) => {
    let total = null;
    let isWhole = true;
    all.forEach((values, which) => {
      if (values[at] !== null) {
        isKnown[which] = true;
        total += values[at];
      } else if (isKnown[which]) isWhole = false;
    });
    return isWhole ? total : null;
  });
}

const joined = (one, other, join) => one.map((value, at) => (value === null ? other[at] : other[at] === null ? value : join(value, other[at])));

/** Lines of a chart: one for each name, over all nodes, or (a name without a label) one for each node. */
export function linesOf(series, { names, join }) {
  return Object.entries(names).flatMap(([name, label]) => {
    const found = series.filter((one) => one.name === name);
    if (!label) return found.map((one) => ({ label: `node ${one.node_id}`, values: one.values }));
    if (!found.length) return [];
    const all = found.map((one) => one.values);
    return [{ label, values: join ? all.reduce((one, other) => joined(one, other, join)) : sums(all) }];
  });
}

/** The charts of a response. */
export function Charts({ answer, charts }) {
  return html`<section><h2>The last hour</h2>
    <${Answered} answer=${answer}>${({ end_ms, step_ms, series, silent_nodes }) => html`
      ${silent_nodes.length > 0 && html`<p class="box warn">${plural(silent_nodes.length, "node")} did not respond (${silent_nodes.join(", ")}): the partitions that they lead are missing.</p>`}
      <div class="charts">${charts.map((chart) => html`<${Chart} key=${chart.title} title=${chart.title} lines=${linesOf(series, chart)} endMs=${end_ms} stepMs=${step_ms} show=${chart.show} isBytes=${chart.isBytes} />`)}</div>
      <p class="dim">Each node keeps the last hour in its memory, from its start on. A value covers ten seconds.</p>`}<//>
  </section>`;
}

/** The partitions with the most traffic in a response. */
export function Busiest({ answer, rows = 10 }) {
  const found = answer.data?.busiest_partitions;
  if (!found) return null;
  return html`<section><h2>Busiest partitions</h2>
    <${Table} isPlain caption="Busiest partitions" rows=${found} page=${rows} keyOf=${(p) => `${p.topic}/${p.partition}`} empty="No records were written or read in the last minute." columns=${[
      { head: "Topic", cell: (p) => html`<${Topic} name=${p.topic} />`, by: (p) => p.topic },
      { head: "Partition", num: true, cell: (p) => p.partition, by: (p) => p.partition },
      { head: "Leader", num: true, cell: (p) => p.leader ?? "none", by: (p) => p.leader },
      { head: "Records in", num: true, cell: (p) => rate(p.records_in_per_second), by: (p) => p.records_in_per_second },
      { head: "Records out", num: true, cell: (p) => rate(p.records_out_per_second), by: (p) => p.records_out_per_second },
      { head: "Bytes in", num: true, cell: (p) => bytesRate(p.bytes_in_per_second), by: (p) => p.bytes_in_per_second },
      { head: "Bytes out", num: true, cell: (p) => bytesRate(p.bytes_out_per_second), by: (p) => p.bytes_out_per_second },
    ]} />
    <p class="dim">Rates of the last minute. If one partition is far above others of its topic, many of its records often share a key.</p>
  </section>`;
}
