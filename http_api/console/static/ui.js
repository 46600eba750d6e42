// Components of pages: names, tables, errors, and forms that ask for confirmation.

import { h } from "./vendor/preact.js";
import { useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { Refusal, Unreachable, curl } from "./api.js";
import { FilterError } from "./filter.js";
import { number, plural, time, visible } from "./text.js";

export const html = htm.bind(h);

/** An address within the console. Names are encoded; the last argument may be an object: its query. */
export function href(...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
  const tail = given.length ? `?${new URLSearchParams(given)}` : "";
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}${tail}`;
}

/** Untrusted text: isolated from the text around it, with no hidden characters. */
export const Name = ({ text }) => html`<bdi class="name">${visible(text)}</bdi>`;

export const Badge = ({ kind = "", children }) => html`<span class="badge ${kind}">${children}</span>`;

export const Ids = ({ ids, inSync, leader }) =>
  ids.length
    ? ids.map((id, i) => html`${i ? " " : ""}<span class=${inSync && !inSync.includes(id) ? "id out" : "id"} title=${inSync && !inSync.includes(id) ? `node ${id} is not in sync` : undefined}>${id}${id === leader ? "★" : ""}</span>`)
    : "–";

export const Topic = ({ name }) => html`<a href=${href("topics", name)}><${Name} text=${name} /></a>`;

export const Nothing = ({ children }) => html`<div class="nothing">${children}</div>`;

export function Head({ title, calls, children }) {
  return html`<header class="head">
    <h1 tabindex="-1">${title}</h1>
    <div class="side">${children}</div>
    <${Curl} calls=${calls ?? []} />
  </header>`;
}

function Curl({ calls }) {
  const [copied, setCopied] = useState("");
  if (!calls.length) return null;
  const text = calls.map((call) => curl(typeof call === "string" ? { where: call } : call)).join("\n");
  const copy = async () => {
    try {
      // Browsers allow the clipboard only for pages over TLS or from the same machine.
      await navigator.clipboard.writeText(text);
      setCopied("copied");
    } catch {
      setCopied("select the text, and copy it");
    }
  };
  return html`<details class="curl">
    <summary>Copy as curl</summary>
    <pre tabindex="0" aria-label="commands">${text}</pre>
    <button onClick=${copy}>Copy</button> <span role="status">${copied}</span>
  </details>`;
}

const HELP = [
  [(e) => e instanceof Unreachable, "This node cannot be reached", "It may be restarting. The page keeps trying. The console of another node shows the same cluster."],
  [(e) => e.code === 50305, "No majority of the metadata quorum responds", "Without a majority this cannot be read or changed. Start the voters that are down: the cluster then continues by itself."],
  [(e) => e.code === 50302, "The partition has no leader that responds", "Start the nodes that were in sync. The partition can be read when one of them leads."],
  [(e) => e.status === 429, "The node is busy", "It accepts no more requests at the moment. The page tries again."],
  [(e) => e.status === 401, "Credentials refused", "The cluster, or a proxy before it, needs other credentials."],
  [(e) => e.kind === "forbidden", "You are not allowed to do this", "A user who manages access can add an entry that allows it, on the page Access."],
  [(e) => e.status === 403, "Not allowed", "A proxy before the node refuses this."],
  [(e) => e.status === 404, "Not found", "It may have been deleted, or have another name."],
  [(e) => e.status >= 500, "The cluster could not do this", "The page tries again."],
  [(e) => e instanceof Refusal, "Refused", ""],
  [(e) => e instanceof FilterError, "This filter is not valid", "Write, for example, value.status >= 500 and header.trace contains “ab”."],
];

/** An error and its meaning. `since`: the time of the data that is still shown. */
export function Failure({ error, since }) {
  if (!error) return null;
  const [, title, advice] = HELP.find(([fits]) => fits(error)) ?? [null, "This page has a bug", "Reload it. The browser's console has details."];
  return html`<div class="box bad" role="alert">
    <strong>${title}</strong>
    <p><${Name} text=${error.message} />${error.requestId ? html` <span class="dim">request ${error.requestId}</span>` : ""}</p>
    ${advice && html`<p>${advice}</p>`}
    ${since && html`<p class="dim">The data below is from ${time(since)}.</p>`}
  </div>`;
}

/** Children once there is a response; until then a loading text, or the error. */
export function Answered({ answer, children }) {
  return html`
    <${Failure} error=${answer.error} since=${answer.data !== undefined && answer.at} />
    ${answer.data !== undefined ? children(answer.data) : !answer.error && html`<p class="dim" role="status">Loading …</p>`}
  `;
}

export const PAGE = 50;

const compare = (a, b) => (typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b), "en", { numeric: true }) : (a ?? -1) - (b ?? -1));

/**
 * The rows of a page in columns. It may be inside a form: none of its buttons submits it. A column: {head, cell(row), num?,
 * by?}; with `by` readers can sort. `order`: {at, sign} or null. `first`: the number of rows on former pages, of `total`.
 * On a narrow screen a row is a card of all its cells, and the roles keep the table's meaning; `isPlain`: it stays a row.
 */
export function Grid({ caption, columns, rows, keyOf, empty = "none", total, first, page, onFirst, order, onSort, isPlain }) {
  const kind = (column) => (column.num ? "num" : column.kind);
  const sorting = (at) => (order?.at === at ? (order.sign > 0 ? "ascending" : "descending") : undefined);
  return html`<div class=${isPlain ? "table" : "table cards"} tabindex="0" role="region" aria-label=${caption}>
      <table role="table">
        <thead role="rowgroup"><tr role="row">${columns.map((column, at) => html`<th scope="col" role="columnheader" class=${kind(column)} aria-sort=${sorting(at)}>
          ${column.by ? html`<button type="button" class="sort" onClick=${() => onSort(at)}>${column.head}<span aria-hidden="true">${order?.at === at ? (order.sign > 0 ? " ▲" : " ▼") : ""}</span></button>` : column.head}
        </th>`)}</tr></thead>
        <tbody role="rowgroup">${rows.map((row) => html`<tr role="row" key=${keyOf?.(row)}>${columns.map((column) => html`<td role="cell" class=${kind(column)} data-head=${column.head}>${column.cell(row)}</td>`)}</tr>`)}</tbody>
      </table>
      ${total === 0 && html`<p class="empty">${empty}</p>`}
    </div>
    ${total > page && html`<nav class="pager" aria-label=${`pages of ${caption}`}>
      <button type="button" disabled=${first === 0} onClick=${() => onFirst(Math.max(0, first - page))}>‹ Previous</button>
      <span>${number(first + 1)}–${number(Math.min(first + page, total))} of ${number(total)}</span>
      <button type="button" disabled=${first + page >= total} onClick=${() => onFirst(first + page)}>Next ›</button>
    </nav>`}`;
}

/** All rows, one page at a time; a column's `by(row)` is its sort key. */
export function Table({ columns, rows, page = PAGE, ...rest }) {
  const [from, setFrom] = useState(0);
  const [order, setOrder] = useState(null);
  const sorted = order ? [...rows].sort((a, b) => order.sign * compare(columns[order.at].by(a), columns[order.at].by(b))) : rows;
  const first = Math.min(from, Math.max(0, Math.floor((rows.length - 1) / page) * page));
  const visibleRows = sorted.slice(first, first + page);
  const sort = (at) => setOrder(order?.at === at ? (order.sign > 0 ? { at, sign: -1 } : null) : { at, sign: 1 });
  return html`<${Grid} ...${rest} columns=${columns} rows=${visibleRows} total=${rows.length} first=${first} page=${page} onFirst=${setFrom} order=${order} onSort=${sort} />`;
}

export function Filter({ label, value, onValue, count, of }) {
  return html`<label class="filter">${label} <input type="search" value=${value} onInput=${(e) => onValue(e.target.value)} /></label>
    <span class="dim" role="status">${value && of !== undefined ? `${number(count)} of ${plural(of, "row")}` : plural(count, "row")}</span>`;
}

/** A named field of a form. */
export function Field({ label, value, onValue, hint, isLong, isDisabled, ...rest }) {
  const common = { value, placeholder: hint, disabled: isDisabled, autocomplete: "off", spellcheck: false, onInput: (e) => onValue(e.target.value) };
  return html`<label class=${isLong ? "wide" : ""}>${label} ${isLong ? html`<textarea ...${common}></textarea>` : html`<input ...${common} ...${rest} />`}</label>`;
}

export const Facts = ({ facts }) =>
  html`<dl class="facts">${facts.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

/** A form that sends one request at a time and shows its result. `act` returns the text for success. */
export function Action({ summary, verb, act, isReady = true, isOpen = false, kind = "", children }) {
  const [state, setState] = useState({});
  // Only the first value counts: afterwards the reader opens and closes the form.
  const [wasOpen] = useState(isOpen);
  const submit = async (event) => {
    event.preventDefault();
    if (state.isBusy || !isReady) return;
    setState({ isBusy: true });
    try {
      setState({ done: (await act()) ?? "done" });
    } catch (error) {
      setState({ error });
    }
  };
  return html`<details class="action" open=${wasOpen}>
    <summary>${summary}</summary>
    <form onSubmit=${submit}>
      ${children}
      <p class="buttons"><button class=${kind} disabled=${!isReady || state.isBusy}>${verb}</button> <span role="status">${state.isBusy ? "sending …" : state.done}</span></p>
      <${Failure} error=${state.error} />
    </form>
  </details>`;
}

/** An Action that cannot be undone: the reader types the name, in its raw or its visible form. */
export function Danger({ summary, verb, name, act, isReady = true, children }) {
  const [typed, setTyped] = useState("");
  return html`<${Action} summary=${summary} verb=${verb} act=${act} isReady=${isReady && (typed === name || typed === visible(name))} kind="danger">
    ${children}
    <label>Type <${Name} text=${name} /> to continue <input autocomplete="off" spellcheck="false" value=${typed} onInput=${(e) => setTyped(e.target.value)} /></label>
  <//>`;
}
