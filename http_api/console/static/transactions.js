// Open transactions: what each one blocks, and a way to abort one whose producer is gone.

import { path, post } from "./api.js";
import { isLate } from "./health.js";
import { PagedFilter, PagedTable, usePaged } from "./paged.js";
import { duration, number, plural, time } from "./text.js";
import { Badge, Danger, Head, Name, Topic, href, html } from "./ui.js";

const idOf = (t) => `${t.producer_id}:${t.producer_epoch}`;

const NAMED = 5; // Partitions of a transaction that are shown.

export function Transactions({ query }) {
  const paged = usePaged("transactions", ["transactions"], query, { more: { partitions: NAMED } });
  const { total = 0, transactions = [], silent_nodes = [] } = paged.data ?? {};
  return html`<${Head} title="Transactions" calls=${[paged.path]} />
    <div class="tools"><${PagedFilter} label="Filter" paged=${paged} count=${total} /></div>
    <${PagedTable} caption="Open transactions" paged=${paged} rows=${transactions} total=${total} keyOf=${idOf} empty=${paged.asked.contains ? "No open transaction matches." : "No transaction is open."} columns=${[
      { head: "Transaction", cell: (t) => html`<${Name} text=${t.transactional_id ?? "forgotten"} />`, by: "transaction" },
      { head: "Producer", cell: (t) => html`<span class="mono">${idOf(t)}</span>` },
      { head: "State", cell: (t) => (isLate(t, Date.now()) ? html`<${Badge} kind="warn">past its timeout<//>` : html`<${Badge}>${t.state}<//>`), by: "deadline" },
      { head: "Started", kind: "when", cell: (t) => time(t.began_ms), by: "began" },
      { head: "Open for", num: true, cell: (t) => duration(Date.now() - t.began_ms) },
      { head: "Timeout", num: true, cell: (t) => duration(t.timeout_ms), by: "timeout" },
      { head: "Blocks, from offset", cell: holdsUp, by: "partitions" },
    ]} />
    ${silent_nodes.length > 0 && html`<p class="box warn">${plural(silent_nodes.length, "node")} did not respond (${silent_nodes.join(", ")}): transactions that only they know of are missing.</p>`}
    <p class="dim">Readers of committed records stop at the first offset of a partition's open transactions.</p>
    ${transactions.length > 0 && html`<section><h2>Change it</h2><div class="actions">
      ${transactions.map((t) => html`<${Abort} key=${idOf(t)} transaction=${t} onDone=${paged.again} />`)}
    </div></section>`}`;
}

function holdsUp({ partitions, partition_count }) {
  const left = partition_count - partitions.length;
  return html`${partitions.map((p) => html`<div><${Topic} name=${p.topic} /> ${p.partition}: <a href=${href("messages", p.topic, { partition: p.partition, from: "offset", at: p.first_offset })}>${p.first_offset}</a> (${number(p.records)})</div>`)}${left > 0 && html`<div class="dim">and ${number(left)} more</div>`}`;
}

function Abort({ transaction, onDone }) {
  const { transactional_id, producer_id, producer_epoch } = transaction;
  const act = async () => {
    await post(path`transactions/${producer_id}/${producer_epoch}:abort`, {});
    onDone();
  };
  return html`<${Danger} summary=${html`Abort <${Name} text=${transactional_id ?? ""} /> ${idOf(transaction)}`} verb="Abort it" name=${idOf(transaction)} act=${act}>
    <p>None of its records will be visible, and its producer gets an error. Without this it ends by itself after its timeout.</p>
  <//>`;
}
