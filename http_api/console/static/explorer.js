// Every call of the API, from the node's /openapi.json: read it, fill it in, send it.

import { useState } from "./vendor/hooks.js";
import { encoded, get, sendRaw, withQuery } from "./api.js";
import { ONCE, useLook } from "./live.js";
import { visible } from "./text.js";
import { Answered, Action, Badge, Field, Filter, Head, Name, Nothing, Table, href, html } from "./ui.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

/** All operations, with their references resolved one level deep. */
function operations(document) {
  const of = (value) => (value?.$ref ? value.$ref.split("/").slice(1).reduce((at, key) => at[key], document) : value);
  return Object.entries(document.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => {
      const { operationId, tags, summary, description, parameters = [], requestBody, responses } = item[method];
      const types = Object.entries(of(requestBody)?.content ?? {}).map(([type, { schema }]) => ({ type, schema: of(schema) }));
      const answers = Object.entries(responses).filter(([status]) => status < 300).flatMap(([, told]) => Object.keys(of(told).content ?? {}));
      return { id: operationId, tag: tags[0], path, method: method.toUpperCase(), summary, description, parameters: parameters.map(of), types, answers: [...new Set(answers)] };
    }),
  );
}

export function Explorer({ names }) {
  const answer = useLook("openapi", (signal) => get("openapi.json", signal).then(operations), ONCE);
  return html`<${Answered} answer=${answer}>${(all) => {
    if (!names.length) return html`<${All} all=${all} />`;
    const found = all.find((one) => one.id === names[0]);
    return found ? html`<${Operation} key=${found.id} operation=${found} />` : html`<${Head} title="API" /><${Nothing}>There is no such call. <a href=${href("api")}>All calls</a><//>`;
  }}<//>`;
}

function All({ all }) {
  const [wanted, setWanted] = useState("");
  const words = wanted.toLowerCase().split(/\s+/);
  const rows = all.filter((one) => words.every((word) => `${one.method} ${one.path} ${one.summary} ${one.tag}`.toLowerCase().includes(word)));
  return html`<${Head} title="API" calls=${["openapi.json"]} />
    <div class="tools"><${Filter} label="Filter" value=${wanted} onValue=${setWanted} count=${rows.length} of=${all.length} /></div>
    <${Table} caption="Calls" rows=${rows} keyOf=${(o) => o.id} page=${200} empty="No call matches." columns=${[
      { head: "Method", cell: (o) => html`<${Badge} kind=${o.method === "DELETE" ? "bad" : ""}>${o.method}<//>`, by: (o) => o.method },
      { head: "Path", cell: (o) => html`<a class="mono" href=${href("api", o.id)}>${o.path}</a>`, by: (o) => o.path },
      { head: "What it does", cell: (o) => coded(o.summary) },
      { head: "Part", cell: (o) => o.tag, by: (o) => o.tag },
    ]} />`;
}

/** The description's text, with the parts in backquotes as code. */
const coded = (text) => text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

const exampleOf = (schema) => (schema?.examples ? JSON.stringify(schema.examples[0], null, 2) : "");

/** The request of a form; throws for a name that browsers cannot send in a path. */
function request(operation, { values, type, accept, body }) {
  const of = (place) => operation.parameters.filter((one) => one.in === place);
  const where = operation.path.slice(1).replace(/\{(\w+)\}/g, (_, name) => encoded(values[name] ?? ""));
  const query = Object.fromEntries(of("query").map(({ name }) => [name, values[name]]));
  const headers = Object.fromEntries(of("header").filter(({ name }) => values[name]).map(({ name }) => [name, values[name]]));
  if (accept) headers.Accept = accept;
  if (operation.types.length && body) headers["Content-Type"] = type;
  return { method: operation.method, where: withQuery(where, query), headers, body: operation.types.length && body ? body : undefined };
}

function Operation({ operation }) {
  const isDanger = operation.method === "DELETE";
  const [form, setForm] = useState({ values: {}, type: operation.types[0]?.type ?? "", accept: "", body: exampleOf(operation.types[0]?.schema) });
  const [typed, setTyped] = useState("");
  const [answer, setAnswer] = useState(null);
  const set = (change) => setForm((last) => ({ ...last, ...change }));
  const setValue = (name) => (value) => set({ values: { ...form.values, [name]: value } });
  const isComplete = operation.parameters.every(({ name, required }) => !required || form.values[name]) && (!isDanger || typed === "DELETE");
  let call = null;
  try {
    call = request(operation, form);
  } catch {
    // The form shows this error when it is sent.
  }
  const act = async () => {
    setAnswer(null);
    setAnswer(await sendRaw(request(operation, form)));
  };
  const choose = (type) => set({ type, body: exampleOf(operation.types.find((one) => one.type === type)?.schema) });
  return html`<${Head} title=${html`<span class="mono">${operation.method} ${operation.path}</span>`} calls=${call ? [call] : []}><a href=${href("api")}>All calls</a><//>
    <p>${coded(`${operation.summary}. ${operation.description ?? ""}`)}</p>
    <${Action} summary="Send it" verb="Send" kind=${isDanger ? "danger" : ""} act=${act} isReady=${isComplete} isOpen=${true}>
      ${operation.parameters.map(({ name, in: place, description, schema, required }) => html`<div key=${name} class="parameter">
        ${schema?.enum && !required
          ? html`<label>${name} <select value=${form.values[name] ?? ""} onChange=${(e) => setValue(name)(e.target.value)}><option value="">default</option>${schema.enum.map((one) => html`<option>${one}</option>`)}</select></label>`
          : html`<${Field} label=${`${name}${required ? "" : ", optional"}`} value=${form.values[name] ?? ""} onValue=${setValue(name)} hint=${String(schema?.default ?? "")} />`}
        <p class="dim">${place}: ${coded(description)}</p>
      </div>`)}
      ${operation.answers.length > 1 && html`<label>Accept <select value=${form.accept} onChange=${(e) => set({ accept: e.target.value })}><option value="">anything</option>${operation.answers.map((type) => html`<option>${type}</option>`)}</select></label>`}
      ${operation.types.length > 0 && html`
        <label>Content-Type <select value=${form.type} onChange=${(e) => choose(e.target.value)}>${operation.types.map(({ type }) => html`<option>${type}</option>`)}</select></label>
        <${Field} label="Body" isLong value=${form.body} onValue=${(body) => set({ body })} />`}
      ${isDanger && html`<${Field} label="Type DELETE to continue" value=${typed} onValue=${setTyped} />`}
    <//>
    ${answer && html`<section aria-live="polite"><h2>Response: <${Badge} kind=${answer.status < 300 ? "ok" : "bad"}>${answer.status}<//> ${answer.isCut ? html`<span class="dim">only its beginning</span>` : ""}</h2>
      <pre tabindex="0" aria-label="headers of the response">${answer.headers.map(([name, value]) => html`<div><${Name} text=${name} />: <${Name} text=${value} /></div>`)}</pre>
      <pre tabindex="0" aria-label="body of the response">${visible(answer.text, "\n\t")}</pre></section>`}`;
}
