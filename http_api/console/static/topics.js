// Topics, and one of them: partitions with their leaders and in-sync replicas, configs with what is not their default.

import { useState } from "./vendor/hooks.js";
import { get, partitionMetric, path } from "./api.js";
import { minInsync } from "./health.js";
import { Busiest, Charts, OF_TOPIC, historyCall, useHistory } from "./history.js";
import { useAnswers, useLook } from "./live.js";
import { number, size } from "./text.js";
import { AddPartitions, CreateTopic, DeleteTopic, EmptyTopic, SetConfig } from "./topic_forms.js";
import { Answered, Badge, Facts, Filter, Head, Ids, Name, Nothing, Table, Topic, href, html } from "./ui.js";

const RARELY_MS = 15000;

async function look(signal) {
  const text = await get("metrics", signal);
  return { stored: partitionMetric(text, "stored_bytes"), rate: partitionMetric(text, "records_in_per_second") };
}

const sum = (values) => values.reduce((all, one) => all + (one ?? 0), 0);

/** How many partitions of a topic are in which trouble, in a word. */
function state(topic) {
  const least = minInsync(topic);
  const offline = topic.partitions.filter((p) => p.leader === null).length;
  if (offline) return html`<${Badge} kind="bad">${offline} offline<//>`;
  const refusing = topic.partitions.filter((p) => p.isr.length < least).length;
  if (refusing) return html`<${Badge} kind="bad">${refusing} below min.insync<//>`;
  const behind = topic.partitions.filter((p) => p.isr.length < p.replicas.length).length;
  return behind ? html`<${Badge} kind="warn">${behind} under-replicated<//>` : html`<${Badge} kind="ok">in sync<//>`;
}

export function Topics({ names, cluster }) {
  if (!cluster.view) return html`<${Head} title="Topics" />`;
  if (!names.length) return html`<${List} cluster=${cluster} />`;
  const topic = cluster.view.topics.find((one) => one.name === names[0]);
  if (topic) return html`<${One} topic=${topic} cluster=${cluster} />`;
  return html`<${Head} title=${html`Topic <${Name} text=${names[0]} />`} /><${Nothing}><p>There is no such topic. It may have been deleted.</p><a href=${href("topics")}>All topics</a><//>`;
}

function List({ cluster: { view, metadata } }) {
  const [wanted, setWanted] = useState("");
  const own = useLook("topics", look);
  const history = useHistory();
  const rows = view.topics.filter((topic) => topic.name.toLowerCase().includes(wanted.toLowerCase()));
  const here = (topic, of) => own.data && sum(topic.partitions.map((p) => own.data[of].get(`${topic.name}/${p.partition}`)));
  const replicas = (topic) => Math.max(0, ...topic.partitions.map((p) => p.replicas.length));
  return html`
    <${Head} title="Topics" calls=${["metadata", "metrics", historyCall()]} />
    <${CreateTopic} isOpen=${view.topics.length === 0} onDone=${metadata.again} />
    <div class="tools"><${Filter} label="Filter" value=${wanted} onValue=${setWanted} count=${rows.length} of=${view.topics.length} /></div>
    <${Table} caption="Topics" rows=${rows} keyOf=${(t) => t.name} empty=${view.topics.length ? "No topic is called so." : "No topics yet."} columns=${[
      { head: "Topic", cell: (t) => html`<${Topic} name=${t.name} />`, by: (t) => t.name },
      { head: "State", cell: (t) => (view.is_current ? state(t) : "–") },
      { head: "Partitions", num: true, cell: (t) => number(t.partitions.length), by: (t) => t.partitions.length },
      { head: "Replicas", num: true, cell: (t) => number(replicas(t)), by: replicas },
      { head: "Configs set", num: true, cell: (t) => number(Object.keys(t.configs).length), by: (t) => Object.keys(t.configs).length },
      { head: "Size here", num: true, cell: (t) => size(here(t, "stored")), by: (t) => here(t, "stored") },
      { head: "Records/s led here", num: true, cell: (t) => number(own.data && Math.round(here(t, "rate"))), by: (t) => here(t, "rate") },
      { head: "Records", cell: (t) => html`<a href=${href("messages", t.name)}>messages</a>` },
    ]} />
    <p class="dim">Sizes and rates are of this node's replicas alone; other nodes tell their own.</p>
    <${Busiest} answer=${history} />`;
}

function One({ topic, cluster: { view, metadata } }) {
  const { cluster_id } = view;
  const own = useLook("topic", look);
  const history = useHistory({ topic: topic.name });
  const [shown, setShown] = useState([]);
  const offsets = useAnswers(shown.map((partition) => path`topics/${topic.name}/partitions/${partition}/offsets`));
  const told = new Map(shown.map((partition, at) => [partition, offsets.data?.[at]]));
  const configs = useLook(`configs ${topic.name}`, (signal) => get(path`v3/clusters/${cluster_id}/topics/${topic.name}/configs`, signal), RARELY_MS);
  const again = () => {
    metadata.again();
    configs.again();
    offsets.again();
  };
  const noticed = (rows) => {
    const now = rows.map((p) => p.partition);
    if (now.join() !== shown.join()) queueMicrotask(() => setShown(now));
  };
  const stored = (p) => own.data?.stored.get(`${topic.name}/${p.partition}`);
  const offset = (p, of) => told.get(p.partition)?.data?.[of];
  const calls = ["metadata", path`topics/${topic.name}`, ...shown.slice(0, 1).map((p) => path`topics/${topic.name}/partitions/${p}/offsets`), path`v3/clusters/${cluster_id}/topics/${topic.name}/configs`, "metrics", historyCall({ topic: topic.name })];
  return html`
    <${Head} title=${html`<${Name} text=${topic.name} />`} calls=${calls}><a href=${href("messages", topic.name)}>Messages</a><//>
    <${Facts} facts=${[
      ["State", view.is_current ? state(topic) : "–"],
      ["Partitions", number(topic.partitions.length)],
      ["Least in sync for acks=all", number(minInsync(topic))],
      ["Configs set", number(Object.keys(topic.configs).length)],
      ["Size on this node", size(own.data && sum(topic.partitions.map(stored)))],
      ["Topic id", html`<span class="mono">${topic.topic_id}</span>`],
    ]} />
    <section><h2>Partitions</h2>
      <${Table} caption="Partitions" rows=${topic.partitions} keyOf=${(p) => p.partition} shown=${noticed} columns=${[
        { head: "Partition", num: true, cell: (p) => html`<a href=${href("messages", topic.name, { partition: p.partition })}>${p.partition}</a>`, by: (p) => p.partition },
        { head: "Leader", num: true, cell: (p) => p.leader ?? html`<${Badge} kind="bad">none<//>`, by: (p) => p.leader ?? -1 },
        { head: "Epoch", num: true, cell: (p) => number(p.leader_epoch), by: (p) => p.leader_epoch },
        { head: "Replicas", cell: (p) => html`<${Ids} ids=${p.replicas} inSync=${view.is_current ? p.isr : null} leader=${p.leader} />` },
        { head: "In sync", cell: (p) => html`<${Ids} ids=${p.isr} />`, by: (p) => p.isr.length },
        { head: "First offset", num: true, cell: (p) => number(offset(p, "beginning_offset")) },
        { head: "Next offset", num: true, cell: (p) => (told.get(p.partition)?.error ? html`<${Badge} kind="bad">not read<//>` : number(offset(p, "end_offset"))) },
        { head: "Size here", num: true, cell: (p) => size(stored(p)), by: stored },
      ]} />
      <p class="dim">★ leads. Struck out: not in sync. Sizes are of this node's replicas alone.</p>
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
