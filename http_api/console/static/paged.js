// Tables whose rows the node filters, sorts and cuts into pages. The address has the current page.

import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { withQuery } from "./api.js";
import { ONCE, useAnswer } from "./live.js";
import { Failure, Field, Filter, Grid, PAGE, href, html } from "./ui.js";

const TYPING_MS = 200;
const SUGGESTED = 20;

/** A value after it has not changed for TYPING_MS. */
function useRested(value) {
  const [rested, setRested] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setRested(value), TYPING_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return rested;
}

/**
 * A page of rows below `where`, as the address says: {answer, data, path, asked, go, again}. `data` is from the last
 * response, of this or the former page, so that a pressed button stays in its place. `names`: the path of this view.
 * `query`: the parameters of its address. `more`: further parameters of the request. `prefix`: put before the parameters
 * of a view's second table.
 */
export function usePaged(where, names, query, { more = {}, prefix = "" } = {}) {
  const asked = Object.fromEntries(["contains", "sort", "order", "skip"].map((word) => [word, query[prefix + word]]));
  const path = withQuery(where, { ...asked, ...more, limit: PAGE });
  const answer = useAnswer(path);
  const kept = useRef();
  if (answer.data !== undefined) kept.current = answer.data;
  const go = (change) => {
    const changed = Object.fromEntries(Object.entries(change).map(([word, value]) => [prefix + word, value]));
    location.replace(href(...names, { ...query, ...changed }));
  };
  return { answer, data: kept.current, path, asked, go, again: answer.again };
}

/** Rows of `paged` in columns, whose `by` is the API's name for the order. `total`: rows on all pages. */
export function PagedTable({ paged: { answer, data, asked, go }, rows, total, columns, ...rest }) {
  const first = Number(asked.skip) || 0;
  const isBeyond = data !== undefined && first > 0 && first >= total;
  useEffect(() => {
    // The rows of the last page are gone: go to the last page that exists.
    if (isBeyond) go({ skip: Math.max(0, Math.floor((total - 1) / PAGE) * PAGE) || "" });
  }, [isBeyond]);
  const at = columns.findIndex((column) => column.by && column.by === asked.sort);
  const sign = asked.order === "desc" ? -1 : 1;
  const sort = (which) => {
    const isSame = which === at;
    go({ sort: isSame && sign < 0 ? "" : columns[which].by, order: isSame && sign > 0 ? "desc" : "", skip: "" });
  };
  return html`
    <${Failure} error=${answer.error} since=${data !== undefined && answer.at} />
    ${data !== undefined
      ? html`<${Grid} ...${rest} columns=${columns} rows=${rows} total=${total} first=${first} page=${PAGE} onFirst=${(skip) => go({ skip: skip || "" })} order=${at < 0 ? null : { at, sign }} onSort=${sort} />`
      : !answer.error && html`<p class="dim" role="status">Loading …</p>`}`;
}

/** The field that filters by name; `of`: the number of rows without the filter, if it is known. */
export function PagedFilter({ label, paged: { asked, go }, count, of }) {
  const [wanted, setWanted] = useState(asked.contains ?? "");
  const rested = useRested(wanted);
  useEffect(() => {
    if (rested !== (asked.contains ?? "")) go({ contains: rested, skip: "" });
  }, [rested]);
  return html`<${Filter} label=${label} value=${wanted} onValue=${setWanted} count=${count} of=${of} />`;
}

/** A field for a topic's name, with suggestions. */
export function TopicField({ value, onValue, id }) {
  const rested = useRested(value);
  const found = useAnswer(rested === "" ? null : withQuery("metadata/topics", { contains: rested, limit: SUGGESTED }), ONCE);
  return html`<${Field} label="Topic" value=${value} onValue=${onValue} list=${id} />
    <datalist id=${id}>${(found.data?.topics ?? []).map((topic) => html`<option value=${topic.name}></option>`)}</datalist>`;
}

const CHOSEN_MAX = 100; // Up to so many partitions the field is a list; above it is a number.

/** A field for one of a topic's partitions; `none`: the text for no partition, if that is a choice. */
export function PartitionField({ count, value, onValue, none }) {
  if (count > CHOSEN_MAX) return html`<${Field} label="Partition" type="number" min="0" max=${count - 1} value=${value} onValue=${onValue} hint=${none ?? `0 to ${count - 1}`} />`;
  return html`<label>Partition <select value=${value} onChange=${(e) => onValue(e.target.value)}>
    ${none !== undefined && html`<option value="">${none}</option>`}
    ${Array.from({ length: count }, (_, partition) => html`<option value=${String(partition)}>${partition}</option>`)}
  </select></label>`;
}
