// Nodes: who is there, what each leads, and what the node that served this page says of itself.

import { get, parseMetrics } from "./api.js";
import { Charts, OF_NODES, historyCall, useHistory } from "./history.js";
import { useLook } from "./live.js";
import { number, size } from "./text.js";
import { Answered, Badge, Facts, Head, Name, Table, html } from "./ui.js";

async function look(signal) {
  const [text, ready] = await Promise.all([get("metrics", signal), get("readyz", signal).catch((error) => error)]);
  return { metrics: parseMetrics(text), ready };
}

const state = (b, isKnown) => {
  if (!isKnown) return html`<${Badge}>not known<//>`;
  if (b.is_fenced) return html`<${Badge} kind="bad">gone<//>`;
  return b.is_draining ? html`<${Badge} kind="warn">draining<//>` : html`<${Badge} kind="ok">up<//>`;
};

/** Replicas, leaderships and replicas out of sync, by node. */
function count(view) {
  const counts = new Map(view.brokers.map((b) => [b.broker_id, { leads: 0, holds: 0, behind: 0 }]));
  for (const { partitions } of view.topics) {
    for (const p of partitions) {
      if (counts.has(p.leader)) counts.get(p.leader).leads++;
      for (const id of p.replicas) {
        const of = counts.get(id);
        if (!of) continue;
        of.holds++;
        if (!p.isr.includes(id)) of.behind++;
      }
    }
  }
  return counts;
}

export function Nodes({ cluster: { view, who } }) {
  const own = useLook("node", look);
  const history = useHistory();
  const calls = ["metadata", "", "readyz", "metrics", historyCall()];
  if (!view) return html`<${Head} title="Nodes" />`;
  const counts = count(view);
  const own_id = who?.node_id;
  const isWeb = (b) => /^https?:\/\//.test(b.url);
  return html`
    <${Head} title="Nodes" calls=${calls} />
    <${Table} caption="Nodes" rows=${view.brokers} keyOf=${(b) => b.broker_id} empty="No node has registered yet." columns=${[
      { head: "Node", num: true, cell: (b) => b.broker_id, by: (b) => b.broker_id },
      { head: "State", cell: (b) => state(b, view.is_current) },
      { head: "Role", cell: (b) => [b.broker_id === view.controller_id && view.is_current ? "controller" : "", b.broker_id === own_id ? "this node" : ""].filter(Boolean).join(", ") },
      { head: "Leads", num: true, cell: (b) => number(counts.get(b.broker_id).leads), by: (b) => counts.get(b.broker_id).leads },
      { head: "Replicas", num: true, cell: (b) => number(counts.get(b.broker_id).holds), by: (b) => counts.get(b.broker_id).holds },
      { head: "Out of sync", num: true, cell: (b) => number(counts.get(b.broker_id).behind), by: (b) => counts.get(b.broker_id).behind },
      { head: "Rack", cell: (b) => (b.rack === null ? "–" : html`<${Name} text=${b.rack} />`), by: (b) => b.rack ?? "" },
      { head: "Address", cell: (b) => (isWeb(b) ? html`<a href=${`${b.url}/console/#/nodes`} rel="noreferrer"><${Name} text=${b.url} /></a>` : html`<${Name} text=${b.url} />`) },
    ]} />
    <${Charts} answer=${history} charts=${OF_NODES} />
    <section><h2>This node${own_id === undefined ? "" : `, ${own_id}`}</h2>
      <p class="dim">Disk, Raft and rates are told by each node of itself: follow another one's address to see its own.</p>
      <${Answered} answer=${own}>${({ metrics, ready }) => html`<${Facts} facts=${[
        ["Version", who ? who.milena_version : "–"],
        ["Ready", ready.status === "ok" ? "yes" : `no: ${ready.message}`],
        ["Free disk", size(metrics.disk_free_bytes)],
        ["Logs on disk", size(metrics.partition_stored_bytes ?? 0)],
        ["Records in", `${number(Math.round(metrics.partition_records_in_per_second ?? 0))}/s`],
        ["Records out", `${number(Math.round(metrics.partition_records_out_per_second ?? 0))}/s`],
        ["Bytes in", `${size(metrics.partition_bytes_in_per_second ?? 0)}/s`],
        ["Bytes out", `${size(metrics.partition_bytes_out_per_second ?? 0)}/s`],
        ["Raft role", metrics.raft_role ?? "–"],
        ["Raft term", number(metrics.raft_term)],
        ["Commit index", number(metrics.raft_commit_index)],
        ["Applied index", number(metrics.raft_applied_index)],
        ["Requests in flight", number(metrics.http_requests_in_flight)],
        ["Open streams", number(metrics.http_streams_open)],
        ["Connections", number(metrics.http_connections_open)],
        ["Memory", size(metrics.process_resident_memory_bytes)],
      ].filter(([, value]) => value !== "–")} />`}<//>
    </section>`;
}
