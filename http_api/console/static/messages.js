// Records of a topic: from either end, an offset, a time, or live; and a form to write one.

import { useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import { path } from "./api.js";
import { ONCE, useAnswer, useLook } from "./live.js";
import { PagedFilter, PagedTable, PartitionField, usePaged } from "./paged.js";
import { Produce } from "./produce.js";
import { Preview, Record, contentOf, download, formOf } from "./record_view.js";
import { BYTES_MAX, LINES, SCANNED_BYTES_MAX, TAIL_MAX, countOf, readRecords, requestsOf, testOf, useTail } from "./reading.js";
import { number, plural, size, time } from "./text.js";
import { Answered, Failure, Field, Filter, Head, Name, Nothing, Table, href, html } from "./ui.js";

const TOGETHER_MAX = 100; // Partitions that the API reads in one request.
const RARELY_MS = 15000;
const BEGINNINGS = { latest: "the last", earliest: "the first", offset: "from offset", time: "from time", live: "live" };

export function Messages({ names, query, cluster: { view } }) {
  if (!view) return html`<${Head} title="Messages" />`;
  return names.length ? html`<${Named} name=${names[0]} query=${query} />` : html`<${Choose} query=${query} count=${view.topic_count} />`;
}

function Choose({ query, count }) {
  const paged = usePaged("metadata/topics", ["messages"], query);
  const { total = 0, topics = [] } = paged.data ?? {};
  return html`<${Head} title="Messages" calls=${[paged.path]} />
    <div class="tools"><${PagedFilter} label="Topic" paged=${paged} count=${total} of=${count} /></div>
    <${PagedTable} caption="Topics" paged=${paged} rows=${topics} total=${total} keyOf=${(t) => t.name} empty="No topic matches." columns=${[
      { head: "Topic", cell: (t) => html`<a href=${href("messages", t.name)}><${Name} text=${t.name} /></a>`, by: "name" },
      { head: "Partitions", num: true, cell: (t) => number(t.partition_count), by: "partitions" },
    ]} />`;
}

function Named({ name, query }) {
  const answer = useAnswer(path`metadata/topics/${name}?limit=1`, RARELY_MS);
  if (answer.data && answer.error?.status !== 404) return html`<${OfTopic} topic=${answer.data} query=${query} />`;
  return html`<${Head} title="Messages" />
    ${answer.error?.status === 404 ? html`<${Nothing}><p>There is no topic <${Name} text=${name} />.</p><a href=${href("messages")}>Choose one</a><//>`
      : answer.error ? html`<${Failure} error=${answer.error} />` : html`<p class="dim" role="status">Loading …</p>`}`;
}

function OfTopic({ topic, query }) {
  const isMany = topic.partition_count > TOGETHER_MAX;
  const given = { partition: isMany ? "0" : "", from: "latest", at: "", filter: "", ...query, count: countOf(query.count) };
  // The address may contain anything.
  const asked = isComplete(given) ? given : { ...given, from: "latest" };
  const isLive = asked.from === "live";
  const partitions = asked.partition === "" ? Array.from({ length: topic.partition_count }, (_, one) => one) : [asked.partition];
  const calls = requestsOf(topic.name, partitions, asked).map(({ where }) => ({ where, headers: { Accept: isLive ? "text/event-stream" : LINES } }));
  // The records do not change while the reader looks at them: asked for once, and again only on request.
  const { test, error: filterError } = testOf(asked.filter);
  const read = (signal) => readRecords(topic.name, partitions, asked, { signal, test });
  const found = useLook(isLive || filterError ? null : `${topic.name} ${topic.partition_count} ${JSON.stringify(asked)}`, read, ONCE);
  const tail = useTail(topic.name, asked.partition, isLive && !filterError, asked.filter);
  return html`
    <${Head} title=${html`Messages of <${Name} text=${topic.name} />`} calls=${calls}><a href=${href("topics", topic.name)}>Topic</a><//>
    <${Question} topic=${topic} asked=${asked} isMany=${isMany} onAgain=${found.again} />
    ${filterError ? html`<${Failure} error=${filterError} />` : isLive
      ? html`<${Failure} error=${tail.error} />
        <p role="status">${tail.isOpen ? "Following" : tail.error ? "Not following" : "Connecting …"}: ${plural(tail.seen, "record")} received${tail.seen > TAIL_MAX ? `, the last ${TAIL_MAX} are shown` : ""}.</p>
        <${Records} topic=${topic} records=${tail.records} empty="No records yet." />`
      : html`<${Answered} answer=${found}>${({ records, seen, isCut, missing }) => html`
        ${missing.map(({ partition, error }) => html`<p class="box warn">Partition ${partition} is missing: <${Name} text=${error.message} /></p>`)}
        ${isCut && html`<p class="box warn">Not all records were read: a page reads up to ${size(SCANNED_BYTES_MAX)} of records, and shows ${size(BYTES_MAX)}. Ask for fewer records, or one partition.</p>`}
        <p role="status">${plural(seen, "record")} read in ${plural(partitions.length, "partition")}${seen > records.length ? `, ${number(records.length)} shown` : ""}.</p>
        <${Records} topic=${topic} records=${records} empty="No records match." />`}<//>`}
    <${Produce} topic=${topic} onDone=${found.again} />`;
}

const isTime = (text) => !Number.isNaN(Date.parse(text));

/** True if a question has all that its request needs. */
function isComplete({ from, at, partition }) {
  if (from === "time") return isTime(at);
  return from !== "offset" || (/^\d+$/.test(at) && partition !== "");
}

function Records({ topic, records, empty }) {
  const [wanted, setWanted] = useState("");
  const [open, setOpen] = useState(null);
  const opener = useRef();
  const show = (record) => (event) => {
    opener.current = event.currentTarget;
    setOpen(record);
  };
  const close = () => {
    setOpen(null);
    // Return the focus to the row that opened the record. While following, that row may be gone.
    (opener.current.isConnected ? opener.current : document.querySelector("h1")).focus();
  };
  const rows = useMemo(() => records.map((record) => ({ record, key: contentOf(record.key), value: contentOf(record.value) })), [records]);
  const found = wanted ? rows.filter(({ key, value }) => [key.text, value.text].some((text) => text?.includes(wanted))) : rows;
  const save = () => download(`${topic.name}.ndjson`, found.map(({ record }) => `${JSON.stringify(record)}\n`).join(""));
  return html`
    ${open && html`<${Record} key=${keyOf(open)} record=${open} onClose=${close} />`}
    <div class="tools"><${Filter} label="Containing" value=${wanted} onValue=${setWanted} count=${found.length} of=${rows.length} />
      <button type="button" disabled=${!found.length} onClick=${save}>Download as NDJSON, base64</button></div>
    <${Table} caption="Records" rows=${found} keyOf=${({ record }) => keyOf(record)} empty=${empty} columns=${[
      { head: "Partition", num: true, cell: ({ record }) => record.partition, by: ({ record }) => record.partition },
      { head: "Offset", num: true, cell: ({ record }) => html`<button type="button" class="link" onClick=${show(record)} aria-label=${`open offset ${record.offset} of partition ${record.partition}`}>${record.offset}</button>`, by: ({ record }) => record.offset },
      { head: "Time", kind: "when", cell: ({ record }) => time(record.timestamp), by: ({ record }) => record.timestamp },
      { head: "Key", cell: ({ key }) => html`<${Preview} content=${key} none="none" />${key.bytes && html` <span class="dim">${formOf(key)}</span>`}` },
      { head: "Value", cell: ({ value }) => html`<${Preview} content=${value} none="none: a tombstone" />` },
      { head: "Headers", num: true, cell: ({ record }) => number(record.headers?.length ?? 0) },
    ]} />`;
}

const keyOf = (record) => `${record.partition}/${record.offset}`;

/** Addresses have times in UTC, forms in the reader's time zone. */
const filled = (asked) => (asked.from === "time" ? { ...asked, at: time(Date.parse(asked.at)).slice(0, 19).replace(" ", "T") } : asked);

function Question({ topic, asked, isMany, onAgain }) {
  const [form, setForm] = useState(filled(asked));
  // useEffect runs up to 100 ms after the form is shown, and would undo what was typed meanwhile.
  useLayoutEffect(() => setForm(filled(asked)), [JSON.stringify(asked)]);
  const set = (name) => (value) => setForm((last) => ({ ...last, [name]: value }));
  const needsPlace = form.from === "offset" || form.from === "time";
  const { error } = testOf(form.filter);
  const isReady = isComplete(form) && !error;
  const submit = (event) => {
    event.preventDefault();
    if (!isReady) return;
    const at = form.from === "time" ? new Date(form.at).toISOString() : form.at;
    const next = href("messages", topic.name, { ...form, at: needsPlace ? at : "", count: form.from === "live" ? "" : form.count });
    if (next === location.hash) onAgain();
    else location.hash = next;
  };
  return html`<form class="tools ask" onSubmit=${submit}>
    <${PartitionField} count=${topic.partition_count} value=${form.partition} onValue=${set("partition")} none=${isMany ? undefined : "all"} />
    <label>Records <select value=${form.from} onChange=${(e) => setForm((last) => ({ ...last, from: e.target.value, at: "" }))}>
      ${Object.entries(BEGINNINGS).map(([name, words]) => html`<option value=${name}>${words}</option>`)}
    </select></label>
    ${form.from === "offset" && html`<${Field} label="Offset" value=${form.at} onValue=${set("at")} hint=${form.partition === "" ? "of one partition" : "0"} />`}
    ${form.from === "time" && html`<${Field} label="Your local time" type="datetime-local" step="1" value=${form.at} onValue=${set("at")} />`}
    ${form.from !== "live" && html`<${Field} label="At most" type="number" min="1" max="1000" value=${form.count} onValue=${set("count")} />`}
    <${Field} label="Only where" value=${form.filter} onValue=${set("filter")} hint=${'value.status >= 500 and key begins "eu"'} aria-describedby="filter-help" />
    <button disabled=${!isReady}>${form.from === "live" ? "Follow" : "Read"}</button>
    ${form.from === "offset" && form.partition === "" && html`<span class="dim">An offset belongs to one partition: choose it.</span>`}
    <span id="filter-help" class="dim" role="status">${error ? `Not yet: ${error.message}.` : ""}</span>
  </form>`;
}
