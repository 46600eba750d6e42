// The console: one page. The part of the address after # selects the view.

import { render } from "./vendor/preact.js";
import { useEffect, useErrorBoundary, useRef, useState } from "./vendor/hooks.js";
import { Unreachable } from "./api.js";
import { useAnswer } from "./live.js";
import { time } from "./text.js";
import { Failure, Name, Nothing, href, html } from "./ui.js";
import { Access } from "./access.js";
import { Cluster } from "./cluster.js";
import { Explorer } from "./explorer.js";
import { Groups } from "./groups.js";
import { Login, Who } from "./login.js";
import { Messages } from "./messages.js";
import { Moves } from "./moves.js";
import { Nodes } from "./nodes.js";
import { useSession } from "./session.js";
import { Topics } from "./topics.js";
import { Transactions } from "./transactions.js";

const VIEWS = { cluster: Cluster, nodes: Nodes, topics: Topics, messages: Messages, groups: Groups, transactions: Transactions, moves: Moves, access: Access, api: Explorer };
const title = (word) => (word === "api" ? "API" : word[0].toUpperCase() + word.slice(1));

/** {view, names, query} of an address; null if it cannot be parsed. */
function parse(hash) {
  const [way, query] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  try {
    const [view, ...names] = way.split("/").filter(Boolean).map(decodeURIComponent);
    return { view: view ?? "cluster", names, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
  } catch {
    return null;
  }
}

function useAddress() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return hash;
}

function Page({ place, cluster }) {
  const [fault] = useErrorBoundary();
  if (fault) return html`<h1 tabindex="-1">Not shown</h1><${Failure} error=${fault} />`;
  const View = place && Object.hasOwn(VIEWS, place.view) ? VIEWS[place.view] : null;
  if (!View) return html`<h1 tabindex="-1">There is no such page</h1><${Nothing}><a href=${href("cluster")}>Go to the cluster</a><//>`;
  return html`<${View} ...${place} cluster=${cluster} />`;
}

/** Links to the consoles of other nodes, if this node does not respond. */
function Others({ view, own }) {
  const others = view?.brokers.filter((b) => b.broker_id !== own && !b.is_fenced && /^https?:\/\//.test(b.url)) ?? [];
  return others.length > 0 && html`<p>Other nodes: ${others.map((b) => html` <a href=${`${b.url}/console/`}>node ${b.broker_id}</a>`)}</p>`;
}

function App({ session }) {
  const hash = useAddress();
  const place = parse(hash);
  const metadata = useAnswer("metadata/summary");
  const who = useAnswer("", 60000);
  const access = useAnswer("access", 30000);
  const main = useRef();
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${place ? [title(place.view), ...place.names].join(" · ") : "Not found"} · Milena`;
    // Move the focus to the new page's title, for keyboards and screen readers.
    if (!isFirst.current) main.current.querySelector("h1")?.focus();
    isFirst.current = false;
  }, [hash.split("?")[0]]);
  const view = metadata.data;
  const cluster = { view, who: who.data, metadata, access };
  const isStranger = metadata.error?.status === 401;
  const isSilent = metadata.error instanceof Unreachable;
  return html`
    <a class="skip" href="#main" onClick=${(e) => (e.preventDefault(), main.current.focus())}>Skip to the content</a>
    <header class="bar">
      <a class="brand" href=${href("cluster")}><img src="icon.svg" alt="" width="22" height="22" /> Milena</a>
      <nav aria-label="pages">${Object.keys(VIEWS).map((name) => html`<a href=${href(name)} aria-current=${place?.view === name ? "page" : undefined}>${title(name)}</a>`)}</nav>
      <p class="who"><${Who} access=${access.data} session=${session} />${who.data ? html`node ${who.data.node_id}, ${who.data.milena_version}<br /><span title="cluster id"><${Name} text=${who.data.cluster_id} /></span>` : ""}</p>
    </header>
    <main id="main" ref=${main} tabindex="-1">
      ${metadata.error && !isStranger && html`<${Failure} error=${metadata.error} since=${metadata.at} />`}
      ${isSilent && html`<${Others} view=${view} own=${who.data?.node_id} />`}
      ${view && !view.is_current && place?.view !== "cluster" && html`<div class="box bad" role="alert"><strong>No majority of the metadata quorum responds</strong><p>This is the last state that this node knew. <a href=${href("cluster")}>What to do</a></p></div>`}
      ${isStranger ? html`<${Login} why=${metadata.error.message} />` : html`<${Page} key=${hash.split("?")[0]} place=${place} cluster=${cluster} />`}
      <footer class="dim">${metadata.at ? `As of ${time(metadata.at).slice(0, 19)}. ` : ""}<a href="../openapi.json">OpenAPI</a> · <a href="../metrics">Metrics</a></footer>
    </main>`;
}

/** The key makes the page load everything again when the reader signs in or out. */
function Root() {
  const session = useSession();
  return html`<${App} key=${session?.header ?? ""} session=${session} />`;
}

const app = document.getElementById("app");
app.replaceChildren();
render(html`<${Root} />`, app);
