// Reset of a group's offsets, with a preview of its changes.

import { useState } from "./vendor/hooks.js";
import { get, path, post, withQuery } from "./api.js";
import { TopicField } from "./paged.js";
import { number, plural } from "./text.js";
import { Action, Field, Grid, PAGE, html } from "./ui.js";

const PLACES = { earliest: "the first records", latest: "the end", offset: "an offset", time: "a time" };
/** The API's parameter `to`. */
const target = ({ place, at }) => (place === "offset" ? Number(at) : place === "time" ? new Date(at).toISOString() : place);

/** The offsets after a reset, for a page of the topic's partitions. */
const preview = (group, form, skip) =>
  get(withQuery(path`groups/${group.group_id}/offsets:reset`, { topic: form.topic, to: target(form), skip, limit: PAGE }));

const difference = ({ now, then }) => {
  if (now === null) return "starts here";
  if (then === now) return "stays";
  return then < now ? `reads ${plural(now - then, "offset")} again` : `skips ${plural(then - now, "offset")}`;
};

export function GroupReset({ group, onDone }) {
  const [form, setForm] = useState({ topic: group.lags[0]?.topic ?? "", place: "earliest", at: "" });
  const [seen, setSeen] = useState(null);
  const set = (name) => (value) => {
    setForm((last) => ({ ...last, [name]: value }));
    setSeen(null);
  };
  const isComplete = form.topic !== "" && (form.place === "offset" ? /^\d{1,15}$/.test(form.at) : form.place !== "time" || !Number.isNaN(Date.parse(form.at)));
  const look = async (skip) => setSeen({ ...(await preview(group, form, skip)), skip });
  const act = async () => {
    if (!seen) {
      await look(0);
      return "this is a preview; nothing has changed yet";
    }
    await post(path`groups/${group.group_id}/offsets:reset`, { topic: form.topic, to: target(form) });
    setSeen(null);
    onDone();
    return "done";
  };
  return html`<${Action} summary="Reset offsets" verb=${seen ? "Reset" : "Preview"} kind=${seen ? "danger" : ""} act=${act} isReady=${isComplete}>
    ${group.member_count > 0 && html`<p class="box warn">The group has ${plural(group.member_count, "member")}. Stop them first: until then a reset is refused.</p>`}
    <${TopicField} id="reset-topics" value=${form.topic} onValue=${set("topic")} />
    <label>Continue at <select value=${form.place} onChange=${(e) => set("place")(e.target.value)}>
      ${Object.entries(PLACES).map(([name, words]) => html`<option value=${name}>${words}</option>`)}
    </select></label>
    ${form.place === "offset" && html`<${Field} label="Offset" value=${form.at} onValue=${set("at")} />`}
    ${form.place === "time" && html`<${Field} label="Your local time" type="datetime-local" step="1" value=${form.at} onValue=${set("at")} />`}
    ${seen && html`<div class="wide"><${Grid} caption="What a reset would do" rows=${seen.partitions} total=${seen.total} first=${seen.skip} page=${PAGE} onFirst=${look} keyOf=${(r) => r.partition} columns=${[
      { head: "Partition", num: true, cell: (r) => r.partition },
      { head: "Now", num: true, cell: (r) => number(r.now) },
      { head: "Then", num: true, cell: (r) => html`<b>${number(r.then)}</b>` },
      { head: "Effect", cell: difference },
    ]} /></div>`}
  <//>`;
}
