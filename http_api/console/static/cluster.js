// The cluster at a glance: what is wrong comes first.

import { get, parseMetrics } from "./api.js";
import { findings, minInsync, troubles } from "./health.js";
import { Busiest, Charts, OF_CLUSTER, historyCall, useHistory } from "./history.js";
import { useLook } from "./live.js";
import { number, plural, size } from "./text.js";
import { Badge, Facts, Head, Ids, Nothing, Table, Topic, href, html } from "./ui.js";

const orError = (promise) => promise.catch((error) => ({ error }));

/** What this node says of itself, and lists that need no page of their own here. */
async function look(signal) {
  const [metrics, ready, transactions, groups, moves] = await Promise.all([
    orError(get("metrics", signal)),
    get("readyz", signal).catch((error) => error),
    orError(get("transactions", signal)),
    orError(get("groups", signal)),
    orError(get("reassignments", signal)),
  ]);
  return {
    metrics: typeof metrics === "string" ? parseMetrics(metrics) : undefined,
    ready,
    transactions: transactions.transactions,
    groups: groups.groups,
    moves: moves.reassignments,
  };
}

const trouble = (row, least) =>
  row.leader === null ? html`<${Badge} kind="bad">offline<//>` : row.isr.length < least ? html`<${Badge} kind="bad">below min.insync<//>` : html`<${Badge} kind="warn">under-replicated<//>`;

function Verdict({ found, view, count }) {
  if (!found.length) {
    return html`<div class="verdict ok" role="status"><strong>Healthy</strong> <span>${plural(view.brokers.length, "node")}, ${plural(count, "partition")}: each has a leader, and all replicas are in sync.</span></div>`;
  }
  return html`<ul class="findings" role="status">${found.map((one) => html`<li class="box ${one.severity}">
    <strong>${one.href ? html`<a href=${one.href}>${one.title}</a>` : one.title}</strong><p>${one.advice}</p>
  </li>`)}</ul>`;
}

export function Cluster({ cluster: { view } }) {
  const own = useLook("cluster", look);
  const history = useHistory();
  if (!view) return html`<${Head} title="Cluster" />`;
  const seen = own.data ?? {};
  const found = findings({ view, ...seen, now: Date.now() });
  const bad = troubles(view);
  const topics = new Map(view.topics.map((topic) => [topic.name, topic]));
  const up = view.brokers.filter((b) => !b.is_fenced).length;
  const isKnown = view.is_current;
  return html`
    <${Head} title="Cluster" calls=${["metadata", "readyz", "metrics", "transactions", "groups", "reassignments", historyCall()]} />
    <${Verdict} found=${found} view=${view} count=${bad.count} />
    <${Facts} facts=${[
      ["Nodes up", html`<a href=${href("nodes")}>${isKnown ? number(up) : "?"} of ${number(view.brokers.length)}</a>`],
      ["Controller", view.controller_id === null || !isKnown ? "–" : `node ${view.controller_id}`],
      ["Topics", html`<a href=${href("topics")}>${number(view.topics.length)}</a>`],
      ["Partitions", number(bad.count)],
      ["Offline", isKnown ? number(bad.leaderless.length) : "?"],
      ["Under-replicated", isKnown ? number(bad.refusing.length + bad.behind.length) : "?"],
      ["Groups", html`<a href=${href("groups")}>${number(seen.groups?.length)}</a>`],
      ["Open transactions", html`<a href=${href("transactions")}>${number(seen.transactions?.length)}</a>`],
      ["Moves", html`<a href=${href("moves")}>${number(seen.moves?.length)}</a>`],
      ["This node's free disk", size(seen.metrics?.disk_free_bytes)],
      ["Written here", `${number(Math.round(seen.metrics?.partition_records_in_per_second ?? 0))} records/s`],
    ]} />
    ${bad.all.length > 0 && html`<section><h2>Partitions that need attention${isKnown ? "" : ", as this node knew them last"}</h2>
      <${Table} caption="Partitions that need attention" rows=${bad.all} keyOf=${(p) => `${p.topic}/${p.partition}`} columns=${[
        { head: "Topic", cell: (p) => html`<${Topic} name=${p.topic} />`, by: (p) => p.topic },
        { head: "Partition", num: true, cell: (p) => p.partition, by: (p) => p.partition },
        { head: "Trouble", cell: (p) => trouble(p, minInsync(topics.get(p.topic))) },
        { head: "Leader", num: true, cell: (p) => p.leader ?? "none" },
        { head: "Replicas", cell: (p) => html`<${Ids} ids=${p.replicas} inSync=${p.isr} />` },
        { head: "In sync", cell: (p) => html`<${Ids} ids=${p.isr} />` },
      ]} /></section>`}
    <${Charts} answer=${history} charts=${OF_CLUSTER} />
    <${Busiest} answer=${history} />
    ${view.topics.length === 0 && html`<${Nothing}>
      <h2>No topics yet</h2>
      <p>A topic is where records go. Make one with <code>milena topics create orders</code>, and write to it.</p>
    <//>`}`;
}
