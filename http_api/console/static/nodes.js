// Nodes: their states, what each leads, and details of the node that served this page.

import { get, parseMetrics } from "./api.js";
import { Charts, OF_NODES, bytesRate, historyCall, newest, rate, useHistory } from "./history.js";
import { useLook } from "./live.js";
import { number, size } from "./text.js";
import { Answered, Badge, Facts, Head, Name, Table, html } from "./ui.js";

const RARELY_MS = 15000;
const METRICS = "metrics?partitions=false";

async function look(signal) {
  const [text, ready] = await Promise.all([get(METRICS, signal), get("readyz", signal).catch((error) => error)]);
  return { metrics: parseMetrics(text), ready };
}

const state = (b, isKnown) => {
  if (!isKnown) return html`<${Badge}>not known<//>`;
  if (b.is_fenced) return html`<${Badge} kind="bad">gone<//>`;
  return b.is_draining ? html`<${Badge} kind="warn">draining<//>` : html`<${Badge} kind="ok">up<//>`;
};

export function Nodes({ cluster: { view, who } }) {
  const own = useLook("node", look, RARELY_MS);
  const history = useHistory();
  const calls = ["metadata/summary", "", "readyz", METRICS, historyCall()];
  if (!view) return html`<${Head} title="Nodes" />`;
  const own_id = who?.node_id;
  const told = (name) => newest(history, name);
  const [recordsIn, recordsOut, bytesIn, bytesOut] = ["records_in", "records_out", "bytes_in", "bytes_out"].map((name) => told(`${name}_per_second`));
  const [free, stored] = [told("disk_free_bytes"), told("stored_bytes")];
  const versions = new Map((history.data?.nodes ?? []).map((one) => [one.node_id, one.version]));
  const of = (values, b) => values.get(b.broker_id) ?? null;
  const isWeb = (b) => /^https?:\/\//.test(b.url);
  return html`
    <${Head} title="Nodes" calls=${calls} />
    <${Table} caption="Nodes" rows=${view.brokers} keyOf=${(b) => b.broker_id} empty="No node has registered yet." columns=${[
      { head: "Node", num: true, cell: (b) => b.broker_id, by: (b) => b.broker_id },
      { head: "State", cell: (b) => state(b, view.is_current) },
      { head: "Role", cell: (b) => [b.broker_id === view.controller_id && view.is_current ? "controller" : "", b.broker_id === own_id ? "this node" : ""].filter(Boolean).join(", ") },
      { head: "Version", cell: (b) => of(versions, b) ?? "–", by: (b) => of(versions, b) ?? "" },
      { head: "Leads", num: true, cell: (b) => number(b.leads), by: (b) => b.leads },
      { head: "Replicas", num: true, cell: (b) => number(b.replicas), by: (b) => b.replicas },
      { head: "Out of sync", num: true, cell: (b) => number(b.out_of_sync), by: (b) => b.out_of_sync },
      { head: "Records in", num: true, cell: (b) => rate(of(recordsIn, b)), by: (b) => of(recordsIn, b) },
      { head: "Records out", num: true, cell: (b) => rate(of(recordsOut, b)), by: (b) => of(recordsOut, b) },
      { head: "Logs", num: true, cell: (b) => size(of(stored, b)), by: (b) => of(stored, b) },
      { head: "Free disk", num: true, cell: (b) => size(of(free, b)), by: (b) => of(free, b) },
      { head: "Rack", cell: (b) => (b.rack === null ? "–" : html`<${Name} text=${b.rack} />`), by: (b) => b.rack ?? "" },
      { head: "Address", cell: (b) => (isWeb(b) ? html`<a href=${`${b.url}/console/#/nodes`} rel="noreferrer"><${Name} text=${b.url} /></a>` : html`<${Name} text=${b.url} />`) },
    ]} />
    <${Charts} answer=${history} charts=${OF_NODES} />
    <section><h2>This node${own_id === undefined ? "" : `, ${own_id}`}</h2>
      <p class="dim">Each node reports only its own Raft state, requests and memory. Follow another node's address to see its values.</p>
      <${Answered} answer=${own}>${({ metrics, ready }) => html`<${Facts} facts=${[
        ["Version", who ? who.milena_version : "–"],
        ["Ready", ready.status === "ok" ? "yes" : `no: ${ready.message}`],
        ["Free disk", size(metrics.disk_free_bytes)],
        ["Bytes in", bytesRate(bytesIn.get(own_id) ?? null)],
        ["Bytes out", bytesRate(bytesOut.get(own_id) ?? null)],
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
