// One record: its key, headers and value as JSON, text or bytes. All of it is untrusted text.

import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { base64Of, bytesOf, hexDump, indented, isJson, plural, size, textOf, time, visible } from "./text.js";
import { Facts, Name, html } from "./ui.js";

const PREVIEW = 160;
const SHOWN_MAX = 64 << 10; // Of a value, in characters or bytes; a download has all of it.
const CONTROL = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f]/; // Control characters that text does not need.
const MODES = ["JSON", "text", "hex", "base64"];

/** {bytes, text, mode}: the content of a key or value, and its default form. */
export function contentOf(base64) {
  const bytes = bytesOf(base64);
  if (bytes === null) return { bytes, text: null, mode: null };
  const text = textOf(bytes);
  if (text === null) return { bytes, text, mode: "hex" };
  if (CONTROL.test(text)) return { bytes, text, mode: "hex" };
  return { bytes, text, mode: isJson(text) ? "JSON" : "text" };
}

/** The form of a key, in the words of the form that writes one: JSON, text or bytes; null without a key. */
export function formOf({ bytes, text }) {
  if (bytes === null) return null;
  if (text === null) return "bytes";
  return isJson(text) ? "JSON" : "text";
}

/** One line of the content, for tables. */
export function Preview({ content, none }) {
  if (content.bytes === null) return html`<span class="dim">${none}</span>`;
  const { bytes, text } = content;
  if (text === null) return html`<span class="mono dim">${hexDump(bytes.subarray(0, 16)).slice(8, 55)}</span>`;
  const cut = text.length > PREVIEW;
  // Cut between whole characters: half of a surrogate pair would be shown as another character.
  const shown = cut ? [...text.slice(0, PREVIEW * 2)].slice(0, PREVIEW).join("") : text;
  return html`<span class="mono"><${Name} text=${shown} />${cut ? html`<span class="dim"> … ${size(bytes.length)}</span>` : ""}</span>`;
}

function rendered({ bytes, text }, mode) {
  if (mode === "hex") return hexDump(bytes.subarray(0, SHOWN_MAX));
  if (mode === "base64") return base64Of(bytes.subarray(0, SHOWN_MAX));
  const shown = mode === "JSON" ? indented(text.slice(0, SHOWN_MAX)) : text.slice(0, SHOWN_MAX);
  return visible(shown, "\n\t");
}

/** A key or value up to SHOWN_MAX, in the mode that the reader chooses. `form`: the form of a key, which the title names. */
export function Content({ title, content, form, none }) {
  const [chosen, setChosen] = useState(null);
  if (content.bytes === null) return html`<section><h3>${title}</h3><p class="dim">${none}</p></section>`;
  const mode = chosen ?? content.mode;
  const can = { JSON: content.mode === "JSON", text: content.text !== null, hex: true, base64: true };
  return html`<section><h3>${title} <span class="dim">${form ? `${form}, ` : ""}${size(content.bytes.length)}</span></h3>
    <div class="tabs" role="group" aria-label=${`${title} as`}>${MODES.map((one) => html`<button type="button" aria-pressed=${mode === one} disabled=${!can[one]} onClick=${() => setChosen(one)}>${one}</button>`)}</div>
    <pre tabindex="0" aria-label=${title} dir="auto">${rendered(content, mode)}</pre>
    ${content.bytes.length > SHOWN_MAX && html`<p class="dim">The first ${size(SHOWN_MAX)}; the download has all of it.</p>`}
  </section>`;
}

export function Record({ record, onClose }) {
  const headers = (record.headers ?? []).map((header) => [header.key, contentOf(header.value)]);
  const [key, value] = [contentOf(record.key), contentOf(record.value)];
  const title = useRef();
  useEffect(() => title.current.focus(), []);
  return html`<aside class="record" aria-label="record" onKeyDown=${(e) => e.key === "Escape" && onClose()}>
    <header class="head"><h2 ref=${title} tabindex="-1">Offset ${record.offset} of partition ${record.partition}</h2><div class="side"></div>
      ${value.bytes && html`<button type="button" onClick=${() => download(`${record.topic}-${record.partition}-${record.offset}`, value.bytes)}>Download the value</button>`}
      <button type="button" onClick=${onClose}>Close</button></header>
    <${Facts} facts=${[["Time", time(record.timestamp)], ["Headers", plural(headers.length, "header")]]} />
    ${headers.map(([name, content]) => html`<p class="header"><${Name} text=${name} />: <${Preview} content=${content} none="null" /></p>`)}
    <${Content} title="Key" content=${key} form=${formOf(key)} none="none" />
    <${Content} title="Value" content=${value} none="none: a tombstone" />
  </aside>`;
}

/** Save bytes or text as a file; the type keeps browsers from showing it as a page. */
export function download(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
