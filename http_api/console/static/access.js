// Access to the cluster: the mode, users and access control entries.

import { useState } from "./vendor/hooks.js";
import { path, withQuery } from "./api.js";
import { AddEntry, ChangeMode, MakeUser, RemoveEntry } from "./access_forms.js";
import { useAnswer } from "./live.js";
import { number } from "./text.js";
import { Answered, Badge, Facts, Filter, Head, Name, Table, href, html } from "./ui.js";
import { User } from "./access_user.js";

const MODES = {
  off: ["bad", "The cluster needs no credentials: every client that reaches a node may do everything."],
  optional: ["warn", "Refusals are only logged. A client without credentials is User:ANONYMOUS."],
  required: ["ok", "Every client needs credentials, and the entries decide what it may do."],
};

export function Access({ names, cluster: { view, access } }) {
  if (!view) return html`<${Head} title="Access" />`;
  if (names.length) return html`<${User} key=${names[0]} name=${names[0]} cluster_id=${view.cluster_id} access=${access.data} />`;
  return html`<${Overview} cluster_id=${view.cluster_id} access=${access} />`;
}

function Overview({ cluster_id, access }) {
  const users = useAnswer("users");
  const entriesPath = path`v3/clusters/${cluster_id}/acls`;
  const entries = useAnswer(entriesPath);
  const again = () => (users.again(), entries.again(), access.again());
  const isSuperuser = access.data?.is_superuser;
  return html`<${Head} title="Access" calls=${["access", "users", entriesPath]} />
    <${Answered} answer=${access}>${(told) => html`
      <${Facts} facts=${[
        ["Mode", html`<${Badge} kind=${MODES[told.mode]?.[0]}>${told.mode}<//>`],
        ["You are", told.user ? html`<a href=${href("access", told.user)}><${Name} text=${told.principal} /></a>` : html`<${Name} text=${told.principal} />`],
        ["Superuser", told.is_superuser ? "yes" : "no"],
      ]} />
      <p>${MODES[told.mode]?.[1]}</p>`}<//>
    <section><h2>Users</h2>
      <${Answered} answer=${users}>${({ users: rows }) => html`
        <${Table} caption="Users" rows=${rows} keyOf=${(u) => u.name} empty="There are no users." columns=${[
          { head: "User", cell: (u) => html`<a href=${href("access", u.name)}><${Name} text=${u.name} /></a>`, by: (u) => u.name },
          { head: "Superuser", cell: (u) => (u.is_superuser ? html`<${Badge} kind="warn">superuser<//>` : "–"), by: (u) => Number(u.is_superuser) },
          { head: "Passwords", num: true, cell: (u) => number(u.password_count), by: (u) => u.password_count },
          { head: "Tokens", num: true, cell: (u) => number(u.token_count), by: (u) => u.token_count },
        ]} />`}<//>
    </section>
    <${Entries} answer=${entries} where=${entriesPath} onDone=${again} />
    <section><h2>Change it</h2><div class="actions">
      <${MakeUser} isSuperuser=${isSuperuser} onDone=${again} />
      <${AddEntry} where=${entriesPath} onDone=${again} />
      <${ChangeMode} access=${access.data} users=${users.data?.users} onDone=${again} />
    </div></section>`;
}

const sentence = (e) => `${e.permission} ${e.principal} ${e.operation} ${e.resource_type} ${e.resource_name}`;

/** The fields that together identify an entry. */
const queryOf = ({ resource_type, resource_name, pattern_type, principal, host, operation, permission }) =>
  ({ resource_type, resource_name, pattern_type, principal, host, operation, permission });

function Entries({ answer, where, onDone }) {
  const [wanted, setWanted] = useState("");
  const [chosen, setChosen] = useState(null);
  const done = () => (setChosen(null), onDone());
  return html`<section><h2>Entries</h2>
    <${Answered} answer=${answer}>${({ data }) => {
      const rows = data.filter((entry) => sentence(entry).toLowerCase().includes(wanted.toLowerCase()));
      return html`
        <div class="tools"><${Filter} label="Containing" value=${wanted} onValue=${setWanted} count=${rows.length} of=${data.length} /></div>
        ${chosen && html`<${RemoveEntry} key=${sentence(chosen)} entry=${chosen} sentence=${sentence(chosen)} where=${withQuery(where, queryOf(chosen))} onDone=${done} />`}
        <${Table} caption="Entries" rows=${rows} keyOf=${(e) => JSON.stringify(queryOf(e))} empty="There are no entries: under “required”, only superusers may do anything." columns=${[
          { head: "Principal", cell: (e) => html`<${Name} text=${e.principal} />`, by: (e) => e.principal },
          { head: "May", cell: (e) => html`<${Badge} kind=${e.permission === "DENY" ? "bad" : "ok"}>${e.permission.toLowerCase()}<//>`, by: (e) => e.permission },
          { head: "Operation", cell: (e) => e.operation, by: (e) => e.operation },
          { head: "Resource", cell: (e) => html`${e.resource_type.toLowerCase()} <${Name} text=${e.resource_name} />${e.pattern_type === "PREFIXED" ? "…" : ""}`, by: (e) => `${e.resource_type} ${e.resource_name}` },
          { head: "From", cell: (e) => (e.host === "*" ? "anywhere" : html`<${Name} text=${e.host} />`), by: (e) => e.host },
          { head: "Remove", cell: (e) => html`<button type="button" class="link" aria-label=${`remove ${sentence(e)}`} onClick=${() => setChosen(e)}>remove …</button>` },
        ]} />
        <p class="dim">An entry that denies overrides those that allow. “…” after a name: all names that begin with it.</p>`;
    }}<//>
  </section>`;
}
