// A line chart of one quantity over time, with the same numbers as a table. Pure: knows neither page nor API.

import { useState } from "./vendor/hooks.js";
import { Table, html } from "./ui.js";
import { time } from "./text.js";

const WIDTH = 600;
const HEIGHT = 150;
const LINES_MAX = 6; // Line styles that readers can tell apart; the style sheet defines as many.
const MINUTE_MS = 60000;
const POINTS_MIN = 30;

/** A round number above `most`: 1, 2 or 5 and zeros; for bytes, in their units. */
export function roundAbove(most, isBytes = false) {
  if (!(most > 0)) return 1;
  const large = isBytes ? 1024 ** Math.floor(Math.log2(most) / 10) : 1;
  const unit = 10 ** Math.floor(Math.log10(most / large));
  return [1, 2, 5, 10].map((factor) => factor * unit * large).find((top) => top >= most);
}

/** An SVG path through the known values, with gaps at unknown ones. */
export function pathOf(values, top) {
  const step = WIDTH / Math.max(1, values.length - 1);
  let isDrawn = false;
  return values.map((value, at) => {
    if (value === null) {
      isDrawn = false;
      return "";
    }
    const point = `${(at * step).toFixed(1)} ${(HEIGHT - (Math.min(value, top) / top) * HEIGHT).toFixed(1)}`;
    const part = `${isDrawn ? "L" : "M"}${point}`;
    // A single point would be invisible.
    const isAlone = !isDrawn && (values[at + 1] ?? null) === null;
    isDrawn = true;
    return isAlone ? `${part}h1` : part;
  }).join("");
}

/** Means of the known values, one row per minute, the newest first. */
export function minutes(lines, endMs, stepMs) {
  const count = Math.max(0, ...lines.map((line) => line.values.length));
  const rows = new Map();
  for (let at = count - 1; at >= 0; at--) {
    const minute = Math.floor((endMs - (count - 1 - at) * stepMs) / MINUTE_MS) * MINUTE_MS;
    if (!rows.has(minute)) rows.set(minute, lines.map(() => ({ sum: 0, count: 0 })));
    lines.forEach(({ values }, which) => {
      if (values[at] == null) return;
      const cell = rows.get(minute)[which];
      cell.sum += values[at];
      cell.count++;
    });
  }
  return [...rows].map(([minute, cells]) => ({ minute, means: cells.map((cell) => (cell.count ? cell.sum / cell.count : null)) }))
    .filter(({ means }) => means.some((mean) => mean !== null));
}

/** Lines without the time before the first known value, as after a node's start; at least POINTS_MIN points stay. */
export function sinceKnown(lines) {
  const first = Math.min(...lines.map(({ values }) => values.findIndex((value) => value !== null)).map((at) => (at < 0 ? Infinity : at)));
  return lines.map((line) => ({ ...line, values: line.values.slice(Math.min(first, Math.max(0, line.values.length - POINTS_MIN))) }));
}

const last = (values) => values.findLast((value) => value !== null) ?? null;

/** `lines`: [{label, values}], the newest value last; `show`: a value in words. */
export function Chart({ title, lines: all, endMs, stepMs, show, isBytes }) {
  const [isTable, setIsTable] = useState(false);
  const lines = sinceKnown(all);
  const known = lines.flatMap((line) => line.values).filter((value) => value !== null);
  if (!known.length) return html`<figure class="chart"><figcaption>${title}</figcaption><p class="empty">No data yet.</p></figure>`;
  const top = roundAbove(Math.max(...known), isBytes);
  const drawn = lines.slice(0, LINES_MAX);
  const count = Math.max(...lines.map((line) => line.values.length));
  const said = lines.map((line) => `${line.label} now ${show(last(line.values))}`).join(", ");
  return html`<figure class="chart">
    <figcaption>${title}</figcaption>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${`${title} over the last hour: ${said}; the scale ends at ${show(top)}`}>
      <path class="grid" d=${`M0 ${HEIGHT / 2}H${WIDTH}M0 1H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}`} />
      ${drawn.map((line, at) => html`<path class=${`line l${at}`} d=${pathOf(line.values, top)} />`)}
    </svg>
    <p class="scale"><span>${time(endMs - (count - 1) * stepMs).slice(11, 16)}</span><span>up to ${show(top)}</span><span>${time(endMs).slice(11, 16)}</span></p>
    <ul class="legend">${lines.map((line, at) => html`<li><span class=${at < LINES_MAX ? `key l${at}` : "key"} aria-hidden="true"></span> ${line.label}: <b>${show(last(line.values))}</b>${at < LINES_MAX ? "" : " (not drawn)"}</li>`)}</ul>
    <button type="button" class="link" aria-expanded=${isTable} onClick=${() => setIsTable(!isTable)}>${isTable ? "Hide the table" : "As a table"}</button>
    ${isTable && html`<${Table} isPlain caption=${`${title}, by minute`} rows=${minutes(lines, endMs, stepMs)} keyOf=${(row) => row.minute} page=${10} columns=${[
      { head: "Minute", kind: "when", cell: (row) => time(row.minute).slice(0, 16), by: (row) => row.minute },
      ...lines.map((line, at) => ({ head: line.label, num: true, cell: (row) => show(row.means[at]), by: (row) => row.means[at] })),
    ]} />`}
  </figure>`;
}
