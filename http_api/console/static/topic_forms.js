// Forms that change topics: create, add partitions, set a config, delete records, delete.

import { useState } from "./vendor/hooks.js";
import { path, post } from "./api.js";
import { number, plural } from "./text.js";
import { Action, Danger, Field, Name, href, html } from "./ui.js";

/** `name=value` lines as configs of the API; throws for any other line. */
function configs(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`“${line}” is not a config: write name=value`);
    return { name: line.slice(0, at).trim(), value: line.slice(at + 1).trim() };
  });
}

const given = (text) => (text === "" ? undefined : Number(text));

export function CreateTopic({ isOpen, onDone }) {
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState("");
  const [replicas, setReplicas] = useState("");
  const [lines, setLines] = useState("");
  const act = async () => {
    await post("admin/topics", {
      topic_name: name,
      partitions_count: given(partitions),
      replication_factor: given(replicas),
      configs: configs(lines),
    });
    onDone?.();
    return html`created <a href=${href("topics", name)}><${Name} text=${name} /></a>`;
  };
  return html`<${Action} summary="Create a topic" verb="Create" act=${act} isReady=${name !== ""} isOpen=${isOpen}>
    <${Field} label="Name" value=${name} onValue=${setName} hint="letters, digits, . _ -" />
    <${Field} label="Partitions" type="number" min="1" value=${partitions} onValue=${setPartitions} hint="the node's default" />
    <${Field} label="Replicas" type="number" min="1" value=${replicas} onValue=${setReplicas} hint="3, or all nodes" />
    <${Field} label="Configs, name=value, one per line" isLong value=${lines} onValue=${setLines} hint="retention.ms=86400000" />
  <//>`;
}

export function AddPartitions({ cluster_id, topic, onDone }) {
  const [count, setCount] = useState("");
  const act = async () => {
    const after = await post(path`v3/clusters/${cluster_id}/topics/${topic.name}`, { partitions_count: Number(count) }, "PATCH");
    onDone();
    return `has ${plural(after.partitions_count, "partition")}`;
  };
  return html`<${Action} summary="Add partitions" verb="Add" act=${act} isReady=${Number(count) > topic.partition_count}>
    <p>Partitions cannot be removed. Existing records stay where they are, but new records of a key may go to another partition. Then the key's old and new records have no common order.</p>
    <${Field} label="Partitions in all" type="number" min=${topic.partition_count + 1} value=${count} onValue=${setCount} hint=${`now ${number(topic.partition_count)}`} />
  <//>`;
}

export function SetConfig({ cluster_id, topic, configs: known, onDone }) {
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const [isReset, setIsReset] = useState(false);
  const one = known.find((config) => config.name === name);
  const act = async () => {
    const change = isReset ? { name, operation: "DELETE" } : { name, value };
    await post(path`v3/clusters/${cluster_id}/topics/${topic.name}/configs:alter`, { data: [change] });
    onDone();
    return isReset ? `${name} has its default` : `${name} is ${value}`;
  };
  const choose = (chosen) => {
    setName(chosen);
    setValue(known.find((config) => config.name === chosen)?.value ?? "");
  };
  return html`<${Action} summary="Set a config" verb=${isReset ? "Reset" : "Set"} act=${act} isReady=${name !== "" && (isReset || value !== one?.value)}>
    <label>Config <select value=${name} onChange=${(e) => choose(e.target.value)}>
      <option value="">choose …</option>
      ${known.map((config) => html`<option value=${config.name}>${config.name}</option>`)}
    </select></label>
    <${Field} label="Value" value=${value} onValue=${setValue} isDisabled=${isReset} />
    <label class="tick"><input type="checkbox" checked=${isReset} onChange=${(e) => setIsReset(e.target.checked)} /> use the default</label>
    <p>It takes effect at once, on every node. ${one && html`Now <b class="mono">${one.value}</b>.`}</p>
  <//>`;
}

export function EmptyTopic({ topic, onDone }) {
  const act = async () => {
    for (let partition = 0; partition < topic.partition_count; partition++) {
      await post(path`topics/${topic.name}/partitions/${partition}/records:delete`, { before_offset: "latest" });
    }
    onDone();
    return "the records are deleted";
  };
  return html`<${Danger} summary="Delete its records" verb="Delete all records" name=${topic.name} act=${act}>
    <p>This permanently deletes all committed records of ${plural(topic.partition_count, "partition")}. The topic, its configs and its offsets stay.</p>
  <//>`;
}

export function DeleteTopic({ cluster_id, topic }) {
  const act = async () => {
    await post(path`v3/clusters/${cluster_id}/topics/${topic.name}`, undefined, "DELETE");
    location.hash = href("topics");
  };
  return html`<${Danger} summary="Delete the topic" verb="Delete for good" name=${topic.name} act=${act}>
    <p>This permanently deletes the topic and its records on every node.</p>
  <//>`;
}
