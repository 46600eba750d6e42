// A form that writes one record.

import { useRef, useState } from "./vendor/hooks.js";
import { Refusal, ask, path } from "./api.js";
import { PartitionField } from "./paged.js";
import { base64Of, compact, isJson } from "./text.js";
import { Action, Field, Name, html } from "./ui.js";

const BINARY = "application/vnd.kafka.binary.v2+json";
const JSON_RECORDS = "application/vnd.kafka.json.v2+json";
const encoder = new TextEncoder();

/** An idempotency key: if a response is lost, sending the same request again does not write twice. */
const newIntent = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");

function headersOf(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`“${line}” is not a header: write name: value`);
    return { key: line.slice(0, at).trim(), value: base64Of(encoder.encode(line.slice(at + 1).trim())) };
  });
}

/** The JSON of a key's field: text that is not JSON becomes a JSON string. */
const keyJson = (text) => (isJson(text) ? text : JSON.stringify(text));

/** Whether a record has no key: in JSON, null is none. */
const isKeyless = ({ key, keyKind }) => key === "" || (keyKind === "JSON" && key.trim() === "null");

/**
 * {type, body}: a request with this record. JSON goes to the node as it was typed, so that it is stored as from any other
 * client. JSON beside text is encoded here, because one request has one format.
 */
function requestOf({ partition, key, keyKind, value, kind, headers }) {
  const hasNone = isKeyless({ key, keyKind });
  const isJsonKey = hasNone || keyKind === "JSON";
  const rest = { headers: headersOf(headers), ...(partition === "" ? {} : { partition: Number(partition) }) };
  if (isJsonKey && kind !== "text") {
    const [keyText, valueText] = [hasNone ? "null" : keyJson(key), kind === "tombstone" ? "null" : value];
    const tail = JSON.stringify(rest).slice(1);
    return { type: JSON_RECORDS, body: `{"records":[{"key":${keyText},"value":${valueText},${tail}]}` };
  }
  const bytes = (text) => base64Of(encoder.encode(text));
  const record = {
    key: hasNone ? null : bytes(isJsonKey ? compact(keyJson(key)) : key),
    value: kind === "tombstone" ? null : bytes(kind === "JSON" ? compact(value) : value),
    ...rest,
  };
  return { type: BINARY, body: JSON.stringify({ records: [record] }) };
}

export function Produce({ topic, onDone }) {
  const [form, setForm] = useState({ partition: "", key: "", keyKind: "JSON", value: "", headers: "", kind: "JSON" });
  const intent = useRef(newIntent());
  const set = (name) => (value) => {
    intent.current = newIntent();
    setForm((last) => ({ ...last, [name]: value }));
  };
  const isTombstone = form.kind === "tombstone";
  const isBroken = form.kind === "JSON" && form.value !== "" && !isJson(form.value);
  const act = async () => {
    const told = await ask("POST", path`topics/${topic.name}`, { ...requestOf(form), headers: { "Idempotency-Key": intent.current } });
    const [receipt] = told.offsets;
    if (receipt.error_code !== null) throw new Refusal(receipt.error, { code: receipt.error_code });
    intent.current = newIntent();
    onDone();
    return `written to partition ${receipt.partition} at offset ${receipt.offset}`;
  };
  const isReady = isTombstone ? !isKeyless(form) : form.value !== "" && !isBroken;
  return html`<${Action} summary="Write a record" verb="Write" act=${act} isReady=${isReady}>
    <${PartitionField} count=${topic.partition_count} value=${form.partition} onValue=${set("partition")} none="by its key" />
    <label>Value is <select value=${form.kind} onChange=${(e) => set("kind")(e.target.value)}>
      ${["JSON", "text", "tombstone"].map((kind) => html`<option>${kind}</option>`)}
    </select></label>
    <${Field} label="Key" value=${form.key} onValue=${set("key")} hint="none" />
    <div class="beside"><label>Key is <select value=${form.keyKind} onChange=${(e) => set("keyKind")(e.target.value)}>
      ${["JSON", "text"].map((kind) => html`<option>${kind}</option>`)}
    </select></label></div>
    ${form.key !== "" && isKeyless(form) && html`<p class="dim" role="status">In JSON, null means that the record has no key.</p>`}
    ${!isKeyless(form) && html`<p class="dim" role="status">The key is stored as <span class="mono"><${Name} text=${form.keyKind === "JSON" ? compact(keyJson(form.key)) : form.key} /></span>.</p>`}
    ${!isTombstone && html`<${Field} label="Value" isLong value=${form.value} onValue=${set("value")} />`}
    ${isBroken && html`<p class="box warn" role="status">This is not JSON yet.</p>`}
    <${Field} label="Headers, name: value, one per line" isLong value=${form.headers} onValue=${set("headers")} />
  <//>`;
}
