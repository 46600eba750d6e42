// Where a group goes on: what a reset would change is shown before it is done.

import { useState } from "./vendor/hooks.js";
import { get, path, post, send, withQuery } from "./api.js";
import { TopicField } from "./paged.js";
import { number, plural } from "./text.js";
import { Action, Field, Table, html } from "./ui.js";

const PLACES = { earliest: "the first records", latest: "the end", offset: "an offset", time: "a time" };
const TOGETHER = 8; // Partitions that are asked at a time.

/** What the API takes as `to`. */
const target = ({ place, at }) => (place === "offset" ? Number(at) : place === "time" ? new Date(at).toISOString() : place);

async function placeOf(topic, partition, form) {
  const where = path`topics/${topic}/partitions/${partition}`;
  const { beginning_offset: first, end_offset: end } = await get(`${where}/offsets`);
  if (form.place === "earliest") return { first, end, to: first };
  if (form.place === "latest") return { first, end, to: end };
  // The API takes an offset into the readable range, too.
  if (form.place === "offset") return { first, end, to: Math.min(Math.max(Number(form.at), first), end) };
  const found = await send("GET", withQuery(`${where}/records`, { timestamp: target(form), count: 1 }));
  await found.body.cancel();
  return { first, end, to: Number(found.headers.get("Milena-Start-Offset")) };
}

async function preview(group, form) {
  const rows = [];
  const topic = await get(path`metadata/topics/${form.topic}?limit=1`);
  const { offsets } = await get(withQuery(path`groups/${group.group_id}/offsets`, { topic: topic.name }));
  const partitions = Array.from({ length: topic.partition_count }, (_, partition) => partition);
  for (let at = 0; at < partitions.length; at += TOGETHER) {
    rows.push(...(await Promise.all(partitions.slice(at, at + TOGETHER).map(async (partition) => {
      const now = offsets[topic.name]?.[partition]?.offset;
      return { partition, now, ...(await placeOf(topic.name, partition, form)) };
    }))));
  }
  return rows;
}

const difference = ({ now, to }) => {
  if (now === undefined) return "begins here";
  if (to === now) return "stays";
  return to < now ? `reads ${plural(now - to, "offset")} again` : `skips ${plural(to - now, "offset")}`;
};

export function GroupReset({ group, onDone }) {
  const [form, setForm] = useState({ topic: group.lags[0]?.topic ?? "", place: "earliest", at: "" });
  const [seen, setSeen] = useState(null);
  const set = (name) => (value) => {
    setForm((last) => ({ ...last, [name]: value }));
    setSeen(null);
  };
  const isComplete = form.topic !== "" && (form.place === "offset" ? /^\d{1,15}$/.test(form.at) : form.place !== "time" || !Number.isNaN(Date.parse(form.at)));
  const act = async () => {
    if (!seen) {
      setSeen(await preview(group, form));
      return "this is what it would do; nothing is changed yet";
    }
    await post(path`groups/${group.group_id}/offsets:reset`, { topic: form.topic, to: target(form) });
    setSeen(null);
    onDone();
    return "done";
  };
  return html`<${Action} summary="Go on elsewhere" verb=${seen ? "Reset" : "Preview"} kind=${seen ? "danger" : ""} act=${act} isReady=${isComplete}>
    ${group.member_count > 0 && html`<p class="box warn">It has ${plural(group.member_count, "member")}: stop them first, a reset is refused until then.</p>`}
    <${TopicField} id="reset-topics" value=${form.topic} onValue=${set("topic")} />
    <label>Go on at <select value=${form.place} onChange=${(e) => set("place")(e.target.value)}>
      ${Object.entries(PLACES).map(([name, words]) => html`<option value=${name}>${words}</option>`)}
    </select></label>
    ${form.place === "offset" && html`<${Field} label="Offset" value=${form.at} onValue=${set("at")} />`}
    ${form.place === "time" && html`<${Field} label="Time, yours" type="datetime-local" step="1" value=${form.at} onValue=${set("at")} />`}
    ${seen && html`<div class="wide"><${Table} caption="What a reset would do" rows=${seen} keyOf=${(r) => r.partition} columns=${[
      { head: "Partition", num: true, cell: (r) => r.partition },
      { head: "Now", num: true, cell: (r) => number(r.now) },
      { head: "Then", num: true, cell: (r) => html`<b>${number(r.to)}</b>` },
      { head: "It", cell: difference },
    ]} /></div>`}
  <//>`;
}
