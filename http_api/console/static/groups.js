// Consumer groups, and the page of one group: its members, REST consumers included, its lag and committed offsets.

import { get, path, post } from "./api.js";
import { GroupReset } from "./group_reset.js";
import { Charts, OF_GROUP, historyCall, useHistory } from "./history.js";
import { useAnswers, useLook } from "./live.js";
import { PagedFilter, PagedTable, usePaged } from "./paged.js";
import { number, time } from "./text.js";
import { Badge, Danger, Facts, Failure, Head, Name, Topic, href, html } from "./ui.js";

const SUMMARY_MS = 10000;
const NAMED = 20; // Partitions of a member that are shown; the table of partitions has all.

const state = (group) => html`<${Badge} kind=${group.state === "STABLE" ? "ok" : group.state === "EMPTY" ? "" : "warn"}>${group.state.toLowerCase()}<//>`;
const lagBadge = (lag) => (lag === undefined ? "–" : html`<span class=${lag > 0 ? "set" : ""}>${number(lag)}</span>`);

export function Groups({ names, query, cluster }) {
  if (!cluster.view) return html`<${Head} title="Groups" />`;
  return names.length ? html`<${One} group_id=${names[0]} query=${query} view=${cluster.view} />` : html`<${List} query=${query} view=${cluster.view} />`;
}

const lagCall = (view, id) => path`v3/clusters/${view.cluster_id}/consumer-groups/${id}/lag-summary`;

function List({ query, view }) {
  const paged = usePaged("groups", ["groups"], query);
  const { total = 0, groups = [] } = paged.data ?? {};
  // A browser cannot send these names in a path, so such groups have no summary here.
  const shown = groups.map((group) => group.group_id).filter((id) => !/^\.{1,2}$/.test(id));
  const summaries = useAnswers(shown.map((id) => lagCall(view, id)), SUMMARY_MS);
  const summary = (group) => summaries.data?.[shown.indexOf(group.group_id)]?.data;
  return html`<${Head} title="Groups" calls=${[paged.path]} />
    <div class="tools"><${PagedFilter} label="Filter" paged=${paged} count=${total} /></div>
    <${PagedTable} caption="Groups" paged=${paged} rows=${groups} total=${total} keyOf=${(g) => g.group_id} empty=${paged.asked.contains ? "No group matches." : "No groups yet: a group starts with its first member or commit."} columns=${[
      { head: "Group", cell: (g) => html`<a href=${href("groups", g.group_id)}><${Name} text=${g.group_id} /></a>`, by: "group" },
      { head: "State", cell: state, by: "state" },
      { head: "Kind", cell: (g) => g.kind },
      { head: "Members", num: true, cell: (g) => number(g.member_count), by: "members" },
      { head: "Lag", num: true, cell: (g) => lagBadge(g.lag ?? summary(g)?.total_lag), by: "lag" },
      { head: "Most behind", cell: (g) => { const most = summary(g); return most?.max_lag > 0 ? html`<${Topic} name=${most.max_lag_topic_name} /> ${most.max_lag_partition_id}: ${number(most.max_lag)}` : "–"; } },
      { head: "Assignor", cell: (g) => g.assignor || "–" },
      { head: "Coordinator", num: true, cell: (g) => g.coordinator ?? "none", by: "coordinator" },
    ]} />`;
}

function One({ group_id, query, view }) {
  const names = ["groups", group_id];
  const lags = usePaged(path`groups/${group_id}/lags`, names, query);
  const members = usePaged(path`groups/${group_id}/members`, names, query, { more: { partitions: NAMED }, prefix: "members." });
  const sum = lagCall(view, group_id);
  // Without a commit the lag is not known. That is not a failure.
  const summary = useLook(sum, (signal) => get(sum, signal).catch((error) => { if (error.status !== 404) throw error; return { total_lag: null }; }), SUMMARY_MS);
  const history = useHistory({ group: group_id });
  const again = () => (lags.again(), members.again(), summary.again());
  const group = lags.data;
  const calls = [lags.path, members.path, ...(group?.total ? [sum] : []), historyCall({ group: group_id })];
  return html`<${Head} title=${html`Group <${Name} text=${group_id} />`} calls=${calls}><a href=${href("groups")}>All groups</a><//>
    ${!group ? (lags.answer.error ? html`<${Failure} error=${lags.answer.error} />` : html`<p class="dim" role="status">Loading …</p>`) : html`
      <${Facts} facts=${[
        ["State", state(group)],
        ["Kind", group.kind],
        ["Members", number(group.member_count)],
        ["Lag", number(summary.data?.total_lag)],
        ["Generation", number(group.generation)],
        ["Assignor", group.assignor || "–"],
        ["Coordinator", group.coordinator === null ? "none" : `node ${group.coordinator}`],
      ]} />
      <section><h2>Committed offsets</h2>
        <div class="tools"><${PagedFilter} label="Topic" paged=${lags} count=${group.total} /></div>
        <${PagedTable} caption="Committed offsets" paged=${lags} rows=${group.lags} total=${group.total} keyOf=${(l) => `${l.topic}/${l.partition}`} empty=${lags.asked.contains ? "No topic matches." : "The group has committed no offsets."} columns=${[
          { head: "Topic", cell: (l) => html`<${Topic} name=${l.topic} />`, by: "partition" },
          { head: "Partition", num: true, cell: (l) => l.partition },
          { head: "Offset", num: true, cell: (l) => html`<a href=${href("messages", l.topic, { partition: l.partition, from: "offset", at: l.offset })}>${l.offset}</a>`, by: "offset" },
          { head: "End", num: true, cell: (l) => (l.end_offset === null ? html`<${Badge} kind="bad">not read<//>` : number(l.end_offset)), by: "end_offset" },
          { head: "Lag", num: true, cell: (l) => lagBadge(l.lag ?? undefined), by: "lag" },
          { head: "Member", cell: (l) => (l.member_id ? html`<${Name} text=${l.member_id} />` : "–"), by: "member" },
          { head: "Committed", kind: "when", cell: (l) => time(l.commit_timestamp), by: "committed" },
          { head: "Note", cell: (l) => html`<${Name} text=${l.metadata} />` },
        ]} />
      </section>
      <${Charts} answer=${history} charts=${OF_GROUP} />
      <section><h2>Members</h2>
        ${group.member_count > 0 && html`<div class="tools"><${PagedFilter} label="Member" paged=${members} count=${members.data?.total ?? 0} of=${group.member_count} /></div>`}
        <${PagedTable} caption="Members" paged=${members} rows=${members.data?.members ?? []} total=${members.data?.total ?? 0} keyOf=${(m) => m.member_id} empty=${group.member_count ? "No member matches." : "The group has no members now."} columns=${[
          { head: "Member", cell: (m) => html`<${Name} text=${m.member_id} /> ${m.is_rest ? html`<${Badge}>REST consumer<//>` : ""}`, by: "member" },
          { head: "Client", cell: (m) => html`<${Name} text=${m.instance_id ?? m.client_id} />` },
          { head: "From", cell: (m) => html`<${Name} text=${m.host || "–"} />` },
          { head: "Reads", cell: (m) => parts(m.assignment, m.assignment_count), by: "partitions" },
          { head: "Gives back", cell: (m) => parts(m.revoking, m.revoking_count) },
          { head: "Waits for", cell: (m) => parts(m.pending, m.pending_count) },
          { head: "Epoch", num: true, cell: (m) => number(m.member_epoch), by: "epoch" },
        ]} />
      </section>
      <section><h2>Change it</h2><div class="actions">
        <${GroupReset} group=${group} onDone=${again} />
        <${Forget} group=${group} />
        ${(members.data?.members ?? []).filter((m) => m.is_rest).map((m) => html`<${EndConsumer} key=${m.member_id} group_id=${group_id} name=${m.member_id} onDone=${again} />`)}
      </div></section>`}`;
}

/** Partitions by topic, and the number of those that are not shown. */
function parts(assigned, count) {
  if (!count) return "–";
  const left = count - assigned.reduce((named, { partitions }) => named + partitions.length, 0);
  return html`${assigned.map(({ topic, partitions }) => html`<div><${Topic} name=${topic} /> ${partitions.join(" ")}</div>`)}${left > 0 && html`<div class="dim">and ${number(left)} more</div>`}`;
}

function Forget({ group }) {
  const act = async () => {
    await post(path`groups/${group.group_id}`, undefined, "DELETE");
    location.hash = href("groups");
  };
  return html`<${Danger} summary="Delete the group" verb="Delete it" name=${group.group_id} act=${act}>
    <p>This deletes the group's committed offsets. A consumer that returns starts where its settings say. Refused while the group has members.</p>
  <//>`;
}

function EndConsumer({ group_id, name, onDone }) {
  const act = async () => {
    await post(path`consumers/${group_id}/instances/${name}`, undefined, "DELETE");
    onDone();
  };
  return html`<${Danger} summary=${html`End the REST consumer <${Name} text=${name} />`} verb="End it" name=${name} act=${act}>
    <p>The REST consumer is on the server. Its client gets an error on its next request.</p>
  <//>`;
}
