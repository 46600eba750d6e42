// Topics, and the page of one topic: partitions with leaders and in-sync replicas, and configs, changed ones first.

import { get, path } from "./api.js";
import { Busiest, Charts, OF_TOPIC, historyCall, rate, useHistory } from "./history.js";
import { useAnswers, useLook } from "./live.js";
import { PagedFilter, PagedTable, usePaged } from "./paged.js";
import { number, size } from "./text.js";
import { AddPartitions, CreateTopic, DeleteTopic, EmptyTopic, SetConfig } from "./topic_forms.js";
import { Answered, Badge, Facts, Failure, Head, Ids, Name, Nothing, Table, Topic, href, html } from "./ui.js";

const RARELY_MS = 15000;

/** A topic's worst problem, with the number of its partitions. */
function state(topic) {
  if (topic.offline) return html`<${Badge} kind="bad">${number(topic.offline)} offline<//>`;
  if (topic.below_min_insync) return html`<${Badge} kind="bad">${number(topic.below_min_insync)} below min.insync<//>`;
  return topic.under_replicated ? html`<${Badge} kind="warn">${number(topic.under_replicated)} under-replicated<//>` : html`<${Badge} kind="ok">in sync<//>`;
}

export function Topics({ names, query, cluster }) {
  if (!cluster.view) return html`<${Head} title="Topics" />`;
  return names.length ? html`<${One} name=${names[0]} query=${query} cluster=${cluster} />` : html`<${List} query=${query} cluster=${cluster} />`;
}

const countOf = (configs) => Object.keys(configs).length;

function List({ query, cluster: { view, metadata } }) {
  const paged = usePaged("metadata/topics", ["topics"], query, { more: { sizes: "all" } });
  const history = useHistory();
  const { total = 0, topics = [], is_current } = paged.data ?? {};
  const again = () => (metadata.again(), paged.again());
  return html`
    <${Head} title="Topics" calls=${[paged.path, historyCall()]} />
    <${CreateTopic} isOpen=${view.topic_count === 0} onDone=${again} />
    <div class="tools"><${PagedFilter} label="Filter" paged=${paged} count=${total} of=${view.topic_count} /></div>
    <${PagedTable} caption="Topics" paged=${paged} rows=${topics} total=${total} keyOf=${(t) => t.name} empty=${view.topic_count ? "No topic matches." : "No topics yet."} columns=${[
      { head: "Topic", cell: (t) => html`<${Topic} name=${t.name} />`, by: "name" },
      { head: "State", cell: (t) => (is_current ? state(t) : "–"), by: "trouble" },
      { head: "Partitions", num: true, cell: (t) => number(t.partition_count), by: "partitions" },
      { head: "Replicas", num: true, cell: (t) => number(t.replication_factor), by: "replicas" },
      { head: "Configs set", num: true, cell: (t) => number(countOf(t.configs)), by: "configs" },
      { head: "Size", num: true, cell: (t) => size(t.stored_bytes), by: "stored_bytes" },
      { head: "Records in here", num: true, cell: (t) => rate(t.records_in_per_second_here), by: "records_in" },
      { head: "Records out here", num: true, cell: (t) => rate(t.records_out_per_second_here), by: "records_out" },
      { head: "Look", cell: (t) => html`<a href=${href("messages", t.name)}>messages</a>` },
    ]} />
    <p class="dim">Sizes are of all replicas${missing(paged.data)}. Record rates are of this node only; each node shows its own.</p>
    <${Busiest} answer=${history} />`;
}

/** The end of a sentence about sizes: the nodes whose replicas are not included. */
const missing = (data) => (data?.silent_nodes?.length ? html`, without those of ${data.silent_nodes.length > 1 ? "nodes" : "node"} ${data.silent_nodes.join(", ")}, which ${data.silent_nodes.length > 1 ? "do" : "does"} not respond` : "");

function One({ name, query, cluster }) {
  const paged = usePaged(path`metadata/topics/${name}`, ["topics", name], query, { more: { sizes: "all" } });
  const isGone = paged.answer.error?.status === 404;
  if (paged.data && !isGone) return html`<${Known} topic=${paged.data} paged=${paged} cluster=${cluster} />`;
  return html`<${Head} title=${html`Topic <${Name} text=${name} />`} calls=${[paged.path]} />
    ${isGone ? html`<${Nothing}><p>There is no such topic. It may have been deleted.</p><a href=${href("topics")}>All topics</a><//>`
      : paged.answer.error ? html`<${Failure} error=${paged.answer.error} />` : html`<p class="dim" role="status">Loading …</p>`}`;
}

function Known({ topic, paged, cluster: { view, metadata } }) {
  const { cluster_id } = view;
  const history = useHistory({ topic: topic.name });
  const shown = topic.partitions.map((p) => p.partition);
  const offsets = useAnswers(shown.map((partition) => path`topics/${topic.name}/partitions/${partition}/offsets`));
  const told = new Map(shown.map((partition, at) => [partition, offsets.data?.[at]]));
  const configs = useLook(`configs ${topic.name}`, (signal) => get(path`v3/clusters/${cluster_id}/topics/${topic.name}/configs`, signal), RARELY_MS);
  const again = () => {
    metadata.again();
    paged.again();
    configs.again();
    offsets.again();
  };
  const offset = (p, of) => told.get(p.partition)?.data?.[of];
  const calls = [paged.path, path`topics/${topic.name}`, ...shown.slice(0, 1).map((p) => path`topics/${topic.name}/partitions/${p}/offsets`), path`v3/clusters/${cluster_id}/topics/${topic.name}/configs`, historyCall({ topic: topic.name })];
  return html`
    <${Head} title=${html`<${Name} text=${topic.name} />`} calls=${calls}><a href=${href("messages", topic.name)}>Messages</a><//>
    <${Facts} facts=${[
      ["State", topic.is_current ? state(topic) : "–"],
      ["Partitions", number(topic.partition_count)],
      ["Least in sync for acks=all", number(topic.min_insync_replicas)],
      ["Configs set", number(countOf(topic.configs))],
      ["Size of all replicas", size(topic.stored_bytes)],
      ["Topic id", html`<span class="mono">${topic.topic_id}</span>`],
    ]} />
    <section><h2>Partitions</h2>
      <${PagedTable} caption="Partitions" paged=${paged} rows=${topic.partitions} total=${topic.partition_count} keyOf=${(p) => p.partition} columns=${[
        { head: "Partition", num: true, cell: (p) => html`<a href=${href("messages", topic.name, { partition: p.partition })}>${p.partition}</a>`, by: "partition" },
        { head: "Leader", num: true, cell: (p) => p.leader ?? html`<${Badge} kind="bad">none<//>`, by: "leader" },
        { head: "Epoch", num: true, cell: (p) => number(p.leader_epoch), by: "leader_epoch" },
        { head: "Replicas", cell: (p) => html`<${Ids} ids=${p.replicas} inSync=${topic.is_current ? p.isr : null} leader=${p.leader} />` },
        { head: "In sync", cell: (p) => html`<${Ids} ids=${p.isr} />`, by: "in_sync" },
        { head: "First offset", num: true, cell: (p) => number(offset(p, "beginning_offset")) },
        { head: "Next offset", num: true, cell: (p) => (told.get(p.partition)?.error ? html`<${Badge} kind="bad">not read<//>` : number(offset(p, "end_offset"))) },
        { head: "Size", num: true, cell: (p) => size(p.stored_bytes), by: "stored_bytes" },
      ]} />
      <p class="dim">★: leader. Struck out: not in sync. Sizes are of all replicas${missing(topic)}.</p>
    </section>
    <${Charts} answer=${history} charts=${OF_TOPIC} />
    <section><h2>Configs</h2>
      <${Answered} answer=${configs}>${({ data }) => html`
        <${Table} caption="Configs" rows=${[...data].sort((a, b) => a.is_default - b.is_default)} keyOf=${(c) => c.name} columns=${[
          { head: "Config", cell: (c) => html`<span class=${c.is_default ? "mono" : "mono set"}>${c.name}</span>`, by: (c) => c.name },
          { head: "Value", cell: (c) => html`<span class=${c.is_default ? "mono" : "mono set"}><${Name} text=${c.value} /></span>` },
          { head: "Default", cell: (c) => (c.is_default ? html`<span class="dim">is the default</span>` : html`<span class="mono"><${Name} text=${c.synonyms.at(-1).value} /></span>`) },
        ]} />`}<//>
    </section>
    <${Busiest} answer=${history} rows=${5} />
    <section><h2>Change it</h2><div class="actions">
      <${SetConfig} cluster_id=${cluster_id} topic=${topic} configs=${configs.data?.data ?? []} onDone=${again} />
      <${AddPartitions} cluster_id=${cluster_id} topic=${topic} onDone=${again} />
      <${EmptyTopic} topic=${topic} onDone=${again} />
      <${DeleteTopic} cluster_id=${cluster_id} topic=${topic} />
    </div></section>`;
}
