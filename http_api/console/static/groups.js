// Consumer groups, and one of them: its members (REST consumers among them), how far it is behind, and where it goes on.

import { useState } from "./vendor/hooks.js";
import { get, path, post } from "./api.js";
import { GroupReset } from "./group_reset.js";
import { Charts, OF_GROUP, historyCall, useHistory } from "./history.js";
import { useAnswer, useAnswers, useLook } from "./live.js";
import { number, time } from "./text.js";
import { Answered, Badge, Danger, Facts, Filter, Head, Name, Table, Topic, href, html } from "./ui.js";

const SUMMARY_MS = 10000;

const state = (group) => html`<${Badge} kind=${group.state === "STABLE" ? "ok" : group.state === "EMPTY" ? "" : "warn"}>${group.state.toLowerCase()}<//>`;
const lagBadge = (lag) => (lag === undefined ? "–" : html`<span class=${lag > 0 ? "set" : ""}>${number(lag)}</span>`);

export function Groups({ names, cluster }) {
  if (!cluster.view) return html`<${Head} title="Groups" />`;
  return names.length ? html`<${One} group_id=${names[0]} view=${cluster.view} />` : html`<${List} view=${cluster.view} />`;
}

function List({ view }) {
  const [wanted, setWanted] = useState("");
  const [shown, setShown] = useState([]);
  const answer = useAnswer("groups");
  const summaries = useAnswers(shown.map((id) => path`v3/clusters/${view.cluster_id}/consumer-groups/${id}/lag-summary`), SUMMARY_MS);
  const noticed = (rows) => {
    // What a browser cannot ask for by its name has no summary here.
    const now = rows.map((group) => group.group_id).filter((id) => !/^\.{1,2}$/.test(id));
    if (JSON.stringify(now) !== JSON.stringify(shown)) queueMicrotask(() => setShown(now));
  };
  const summary = (group) => summaries.data?.[shown.indexOf(group.group_id)]?.data;
  return html`<${Head} title="Groups" calls=${["groups"]} />
    <${Answered} answer=${answer}>${({ groups }) => {
      const rows = groups.filter((group) => group.group_id.includes(wanted));
      return html`<div class="tools"><${Filter} label="Filter" value=${wanted} onValue=${setWanted} count=${rows.length} of=${groups.length} /></div>
      <${Table} caption="Groups" rows=${rows} keyOf=${(g) => g.group_id} shown=${noticed} empty=${groups.length ? "No group is called so." : "No groups yet: one begins with its first member, or commit."} columns=${[
        { head: "Group", cell: (g) => html`<a href=${href("groups", g.group_id)}><${Name} text=${g.group_id} /></a>`, by: (g) => g.group_id },
        { head: "State", cell: state, by: (g) => g.state },
        { head: "Members", num: true, cell: (g) => number(g.member_count), by: (g) => g.member_count },
        { head: "Lag", num: true, cell: (g) => lagBadge(summary(g)?.total_lag) },
        { head: "Most behind", cell: (g) => { const most = summary(g); return most?.max_lag > 0 ? html`<${Topic} name=${most.max_lag_topic_name} /> ${most.max_lag_partition_id}: ${number(most.max_lag)}` : "–"; } },
        { head: "Assignor", cell: (g) => g.assignor || "–" },
        { head: "Coordinator", num: true, cell: (g) => g.coordinator ?? "none", by: (g) => g.coordinator ?? -1 },
      ]} />`;
    }}<//>`;
}

function One({ group_id, view }) {
  const where = path`groups/${group_id}`;
  const lagsPath = path`v3/clusters/${view.cluster_id}/consumer-groups/${group_id}/lags`;
  const answer = useAnswer(where);
  // Nothing committed is no lag, not a failure.
  const lags = useLook(lagsPath, (signal) => get(lagsPath, signal).catch((error) => { if (error.status !== 404) throw error; return { data: [] }; }));
  const history = useHistory({ group: group_id });
  const again = () => (answer.again(), lags.again());
  return html`<${Head} title=${html`Group <${Name} text=${group_id} />`} calls=${[where, lagsPath, historyCall({ group: group_id })]}><a href=${href("groups")}>All groups</a><//>
    <${Answered} answer=${answer}>${(group) => html`
      <${Facts} facts=${[
        ["State", state(group)],
        ["Members", number(group.members.length)],
        ["Lag", lags.data ? number(lags.data.data.reduce((all, one) => all + one.lag, 0)) : "–"],
        ["Generation", number(group.generation)],
        ["Assignor", group.assignor || "–"],
        ["Coordinator", group.coordinator === null ? "none" : `node ${group.coordinator}`],
      ]} />
      <section><h2>Where it stands</h2>
        <${Answered} answer=${lags}>${({ data }) => html`<${Table} caption="Where it stands" rows=${data} keyOf=${(l) => `${l.topic_name}/${l.partition_id}`} empty="It has committed nothing." columns=${[
          { head: "Topic", cell: (l) => html`<${Topic} name=${l.topic_name} />`, by: (l) => l.topic_name },
          { head: "Partition", num: true, cell: (l) => l.partition_id, by: (l) => l.partition_id },
          { head: "Goes on at", num: true, cell: (l) => html`<a href=${href("messages", l.topic_name, { partition: l.partition_id, from: "offset", at: l.current_offset })}>${l.current_offset}</a>`, by: (l) => l.current_offset },
          { head: "End", num: true, cell: (l) => number(l.log_end_offset), by: (l) => l.log_end_offset },
          { head: "Lag", num: true, cell: (l) => lagBadge(l.lag), by: (l) => l.lag },
          { head: "Member", cell: (l) => (l.consumer_id ? html`<${Name} text=${l.consumer_id} />` : "–"), by: (l) => l.consumer_id },
          { head: "Committed", kind: "when", cell: (l) => time(committed(group, l)?.commit_timestamp) },
          { head: "Note", cell: (l) => html`<${Name} text=${committed(group, l)?.metadata ?? ""} />` },
        ]} />`}<//>
      </section>
      <${Charts} answer=${history} charts=${OF_GROUP} />
      <section><h2>Members</h2>
        <${Table} caption="Members" rows=${group.members} keyOf=${(m) => m.member_id} empty="Nobody reads as this group now." columns=${[
          { head: "Member", cell: (m) => html`<${Name} text=${m.member_id} /> ${m.is_rest ? html`<${Badge}>REST consumer<//>` : ""}`, by: (m) => m.member_id },
          { head: "Client", cell: (m) => html`<${Name} text=${m.instance_id ?? m.client_id} />` },
          { head: "From", cell: (m) => html`<${Name} text=${m.host || "–"} />` },
          { head: "Reads", cell: (m) => parts(m.assignment) },
          { head: "Gives back", cell: (m) => parts(m.revoking) },
          { head: "Waits for", cell: (m) => parts(m.pending) },
          { head: "Epoch", num: true, cell: (m) => number(m.member_epoch) },
        ]} />
      </section>
      <section><h2>Change it</h2><div class="actions">
        <${GroupReset} group=${group} onDone=${again} />
        <${Forget} group=${group} />
        ${group.members.filter((m) => m.is_rest).map((m) => html`<${EndConsumer} key=${m.member_id} group_id=${group_id} name=${m.member_id} onDone=${again} />`)}
      </div></section>`}<//>`;
}

const committed = (group, lag) => group.offsets[lag.topic_name]?.[lag.partition_id];
const parts = (assigned) => (assigned.length ? assigned.map(({ topic, partitions }) => html`<div><${Topic} name=${topic} /> ${partitions.join(" ")}</div>`) : "–");

function Forget({ group }) {
  const act = async () => {
    await post(path`groups/${group.group_id}`, undefined, "DELETE");
    location.hash = href("groups");
  };
  return html`<${Danger} summary="Forget the group" verb="Forget it" name=${group.group_id} act=${act}>
    <p>What it has committed is forgotten: who comes back begins where its settings say. Refused while it has members.</p>
  <//>`;
}

function EndConsumer({ group_id, name, onDone }) {
  const act = async () => {
    await post(path`consumers/${group_id}/instances/${name}`, undefined, "DELETE");
    onDone();
  };
  return html`<${Danger} summary=${html`End the REST consumer <${Name} text=${name} />`} verb="End it" name=${name} act=${act}>
    <p>It lives on the server: its client is told with the next call that it is gone.</p>
  <//>`;
}
