// Moves of replicas in progress, and a form for new moves with a preview.

import { useState } from "./vendor/hooks.js";
import { post } from "./api.js";
import { PagedFilter, PagedTable, TopicField, usePaged } from "./paged.js";
import { number, plural, size } from "./text.js";
import { Action, Badge, Danger, Field, Head, Ids, Table, Topic, html } from "./ui.js";

const KINDS = { rebalance: "even out the cluster", drain: "empty a node", partitions: "move one partition" };
const keyOf = (p) => `${p.topic}/${p.partition}`;

export function Moves({ query, cluster: { view } }) {
  const paged = usePaged("reassignments", ["moves"], query);
  if (!view) return html`<${Head} title="Moves" />`;
  const { total = 0, reassignments = [] } = paged.data ?? {};
  return html`<${Head} title="Moves" calls=${[paged.path]} />
    <div class="tools"><${PagedFilter} label="Topic" paged=${paged} count=${total} /></div>
    <${PagedTable} caption="Moves in progress" paged=${paged} rows=${reassignments} total=${total} keyOf=${keyOf} empty=${paged.asked.contains ? "No move of such a topic is in progress." : "No move is in progress."} columns=${[
      { head: "Topic", cell: (m) => html`<${Topic} name=${m.topic} />`, by: "partition" },
      { head: "Partition", num: true, cell: (m) => m.partition },
      { head: "State", cell: (m) => html`<${Badge} kind=${m.state === "waiting" ? "" : "warn"}>${m.state.replace("_", " ")}<//>`, by: "state" },
      { head: "Before", cell: (m) => html`<${Ids} ids=${m.replicas_before} />` },
      { head: "After", cell: (m) => html`<${Ids} ids=${m.replicas} />` },
      { head: "Left to copy", cell: (m) => m.added.map(left), by: "bytes_left" },
    ]} />
    <section><h2>Change it</h2><div class="actions">
      <${Move} view=${view} onDone=${paged.again} />
      ${reassignments.length > 0 && html`<${TakeBack} count=${total} onDone=${paged.again} />`}
    </div></section>`;
}

const left = ({ broker_id, is_in_sync, offsets_left, bytes_left }) =>
  html`<div>node ${broker_id}: ${is_in_sync ? "in sync" : offsets_left === null ? "not known" : `${number(offsets_left)} offsets, ${size(bytes_left)}`}</div>`;

/** The request of the form; null if it is not complete. */
function wish({ kind, node, topic, partition, replicas, throttle }) {
  const ids = replicas.split(/[\s,]+/).filter(Boolean);
  const whole = (text) => /^\d+$/.test(text);
  const asked = kind === "rebalance" ? { rebalance: true }
    : kind === "drain" ? whole(node) && { drain: Number(node) }
      : topic && whole(partition) && ids.length && ids.every(whole) && { partitions: [{ topic, partition: Number(partition), replicas: ids.map(Number) }] };
  if (!asked) return null;
  return throttle ? { ...asked, throttle_bytes_per_s: Math.round(Number(throttle) * 2 ** 20) } : asked;
}

function Move({ view, onDone }) {
  const [form, setForm] = useState({ kind: "rebalance", node: "", topic: "", partition: "", replicas: "", throttle: "" });
  const [seen, setSeen] = useState(null);
  const set = (name) => (value) => {
    setForm((last) => ({ ...last, [name]: value }));
    setSeen(null);
  };
  const asked = wish(form);
  const act = async () => {
    if (!seen) {
      const { partitions } = await post("reassignments", { ...asked, dry_run: true });
      if (!partitions.length) return "nothing would move";
      setSeen(partitions);
      return "this is a preview; nothing moves yet";
    }
    const { partitions } = await post("reassignments", asked);
    setSeen(null);
    onDone();
    return `${plural(partitions.filter((p) => p.error_code === null).length, "partition")} moving`;
  };
  return html`<${Action} summary="Move replicas" verb=${seen ? "Move" : "Preview"} kind=${seen ? "danger" : ""} act=${act} isReady=${asked !== null}>
    <label>What <select value=${form.kind} onChange=${(e) => set("kind")(e.target.value)}>
      ${Object.entries(KINDS).map(([name, words]) => html`<option value=${name}>${words}</option>`)}
    </select></label>
    ${form.kind === "drain" && html`<label>Node <select value=${form.node} onChange=${(e) => set("node")(e.target.value)}>
      <option value="">choose …</option>
      ${view.brokers.map((b) => html`<option value=${String(b.broker_id)}>${b.broker_id}</option>`)}
    </select></label>`}
    ${form.kind === "partitions" && html`
      <${TopicField} id="moved-topics" value=${form.topic} onValue=${set("topic")} />
      <${Field} label="Partition" type="number" min="0" value=${form.partition} onValue=${set("partition")} />
      <${Field} label="Nodes, the leader first" value=${form.replicas} onValue=${set("replicas")} hint="3 1 2" />`}
    <${Field} label="At most, MiB/s a leader" type="number" min="0" step="any" value=${form.throttle} onValue=${set("throttle")} hint="as configured" />
    <p>New replicas copy the partition and join it. Only then are the former replicas removed, so no redundancy is lost.</p>
    ${seen && html`<div class="wide"><${Table} caption="What would move" rows=${seen} keyOf=${keyOf} columns=${[
      { head: "Topic", cell: (p) => html`<${Topic} name=${p.topic} />` },
      { head: "Partition", num: true, cell: (p) => p.partition },
      { head: "Before", cell: (p) => html`<${Ids} ids=${p.replicas_before} />` },
      { head: "After", cell: (p) => (p.error ? html`<span class="bad">${p.error}</span>` : html`<${Ids} ids=${p.replicas} />`) },
    ]} /></div>`}
  <//>`;
}

function TakeBack({ count, onDone }) {
  const act = async () => {
    const { partitions } = await post("reassignments", undefined, "DELETE");
    onDone();
    return `${plural(partitions.length, "move")} cancelled`;
  };
  return html`<${Danger} summary="Cancel all moves" verb="Cancel them" name="moves" act=${act}>
    <p>${plural(count, "partition")} return to their former replicas. Refused while too few of them are in sync.</p>
  <//>`;
}
