// Transactions that are open: what they hold up, and an end for one that nobody will end.

import { path, post } from "./api.js";
import { isLate } from "./health.js";
import { useAnswer } from "./live.js";
import { duration, number, time } from "./text.js";
import { Answered, Badge, Danger, Head, Name, Table, Topic, href, html } from "./ui.js";

const idOf = (t) => `${t.producer_id}:${t.producer_epoch}`;

export function Transactions({ cluster: { view } }) {
  const answer = useAnswer("transactions");
  return html`<${Head} title="Transactions" calls=${["transactions"]} />
    <${Answered} answer=${answer}>${({ transactions }) => html`
      <${Table} caption="Open transactions" rows=${transactions} keyOf=${idOf} empty="None is open: nothing is held up." columns=${[
        { head: "Transaction", cell: (t) => html`<${Name} text=${t.transactional_id ?? "forgotten"} />`, by: (t) => t.transactional_id ?? "" },
        { head: "Producer", cell: (t) => html`<span class="mono">${idOf(t)}</span>` },
        { head: "State", cell: (t) => (isLate(t, Date.now()) ? html`<${Badge} kind="warn">past its time<//>` : html`<${Badge}>${t.state}<//>`) },
        { head: "Began", kind: "when", cell: (t) => time(t.began_ms), by: (t) => t.began_ms },
        { head: "Open for", num: true, cell: (t) => duration(Date.now() - t.began_ms), by: (t) => -t.began_ms },
        { head: "At most", num: true, cell: (t) => duration(t.timeout_ms), by: (t) => t.timeout_ms },
        { head: "Holds up, from offset", cell: (t) => t.partitions.map((p) => html`<div><${Topic} name=${p.topic} /> ${p.partition}: <a href=${href("messages", p.topic, { partition: p.partition, from: "offset", at: p.first_offset })}>${p.first_offset}</a> (${number(p.records)})</div>`) },
      ]} />
      <p class="dim">Committed reading of a partition goes no further than the first offset of what is open there.</p>
      ${view && transactions.length > 0 && html`<section><h2>Change it</h2><div class="actions">
        ${transactions.map((t) => html`<${Abort} key=${idOf(t)} transaction=${t} onDone=${answer.again} />`)}
      </div></section>`}`}<//>`;
}

function Abort({ transaction, onDone }) {
  const { transactional_id, producer_id, producer_epoch } = transaction;
  const act = async () => {
    await post(path`transactions/${producer_id}/${producer_epoch}:abort`, {});
    onDone();
  };
  return html`<${Danger} summary=${html`Abort <${Name} text=${transactional_id ?? ""} /> ${idOf(transaction)}`} verb="Abort it" name=${idOf(transaction)} act=${act}>
    <p>Nothing of it will count, and its producer is told so. It ends by itself once its time is over.</p>
  <//>`;
}
