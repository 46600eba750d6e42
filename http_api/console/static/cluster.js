// Overview of the cluster: problems come first.

import { get } from "./api.js";
import { findings } from "./health.js";
import { Busiest, Charts, OF_CLUSTER, historyCall, newest, rate, useHistory } from "./history.js";
import { useLook } from "./live.js";
import { number, plural, size } from "./text.js";
import { Badge, Facts, Head, Ids, Nothing, Table, Topic, href, html } from "./ui.js";

const orError = (promise) => promise.catch((error) => ({ error }));

// The transactions past their timeout come first. Of things with their own page, only the count is used.
const LATEST = "transactions?sort=deadline&limit=50&partitions=0";
const CALLS = ["readyz", LATEST, "groups?limit=1", "reassignments?limit=1"];

/** Ask whether this node is ready, for late transactions, and for counts of groups, transactions and moves. */
async function look(signal) {
  const [ready, ...pages] = await Promise.all([
    get(CALLS[0], signal).catch((error) => error),
    ...CALLS.slice(1).map((call) => orError(get(call, signal))),
  ]);
  const [transactions, groups, moves] = pages.map((page) => page.total);
  return { ready, latest: pages[0].transactions, counts: { transactions, groups, moves } };
}

const TROUBLES = { offline: ["bad", "offline"], below_min_insync: ["bad", "below min.insync"], under_replicated: ["warn", "under-replicated"] };
const trouble = ({ trouble: name }) => html`<${Badge} kind=${TROUBLES[name][0]}>${TROUBLES[name][1]}<//>`;

const total = (values) => (values.size ? [...values.values()].reduce((all, one) => all + one, 0) : null);

function Verdict({ found, view }) {
  if (!found.length) {
    return html`<div class="verdict ok" role="status"><strong>Healthy</strong> <span>${plural(view.brokers.length, "node")}, ${plural(view.partition_count, "partition")}: each has a leader, and all replicas are in sync.</span></div>`;
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
  const free = newest(history, "disk_free_bytes");
  const found = findings({ view, free, ready: seen.ready, latest: seen.latest, transactions: seen.counts?.transactions, now: Date.now() });
  const count = view.offline + view.below_min_insync + view.under_replicated;
  const up = view.brokers.filter((b) => !b.is_fenced).length;
  const isKnown = view.is_current;
  return html`
    <${Head} title="Cluster" calls=${["metadata/summary", ...CALLS, historyCall()]} />
    <${Verdict} found=${found} view=${view} />
    <${Facts} facts=${[
      ["Nodes up", html`<a href=${href("nodes")}>${isKnown ? number(up) : "?"} of ${number(view.brokers.length)}</a>`],
      ["Controller", view.controller_id === null || !isKnown ? "–" : `node ${view.controller_id}`],
      ["Topics", html`<a href=${href("topics")}>${number(view.topic_count)}</a>`],
      ["Partitions", number(view.partition_count)],
      ["Offline", isKnown ? number(view.offline) : "?"],
      ["Under-replicated", isKnown ? number(view.below_min_insync + view.under_replicated) : "?"],
      ["Groups", html`<a href=${href("groups")}>${number(seen.counts?.groups)}</a>`],
      ["Open transactions", html`<a href=${href("transactions")}>${number(seen.counts?.transactions)}</a>`],
      ["Moves", html`<a href=${href("moves")}>${number(seen.counts?.moves)}</a>`],
      ["Records in", rate(total(newest(history, "records_in_per_second")))],
      ["Records out", rate(total(newest(history, "records_out_per_second")))],
      ["Least free disk", size(free.size ? Math.min(...free.values()) : null)],
    ]} />
    ${count > 0 && html`<section><h2>Partitions that need attention${isKnown ? "" : ", in the last state that this node knew"}</h2>
      <${Table} caption="Partitions that need attention" rows=${view.worst_partitions} keyOf=${(p) => `${p.topic}/${p.partition}`} columns=${[
        { head: "Topic", cell: (p) => html`<${Topic} name=${p.topic} />`, by: (p) => p.topic },
        { head: "Partition", num: true, cell: (p) => p.partition, by: (p) => p.partition },
        { head: "Problem", cell: trouble },
        { head: "Leader", num: true, cell: (p) => p.leader ?? "none" },
        { head: "Replicas", cell: (p) => html`<${Ids} ids=${p.replicas} inSync=${p.isr} />` },
        { head: "In sync", cell: (p) => html`<${Ids} ids=${p.isr} />` },
      ]} />
      ${count > view.worst_partitions.length && html`<p class="dim">The worst ${view.worst_partitions.length} of ${number(count)}. <a href=${href("topics", { sort: "trouble", order: "desc" })}>Topics sorted by problems</a></p>`}</section>`}
    <${Charts} answer=${history} charts=${OF_CLUSTER} />
    <${Busiest} answer=${history} />
    ${view.topic_count === 0 && html`<${Nothing}>
      <h2>No topics yet</h2>
      <p>A topic holds records. Create one with <code>milena topics create orders</code>, and write to it.</p>
    <//>`}`;
}
