// One user: password, superuser or not, and tokens, which are shown once.

import { useState } from "./vendor/hooks.js";
import { path, post } from "./api.js";
import { NO_RESOURCE, Resource } from "./access_forms.js";
import { useAnswer } from "./live.js";
import { number, time } from "./text.js";
import { Action, Answered, Badge, Danger, Facts, Field, Head, Name, Table, href, html } from "./ui.js";

const DAY_MS = 86400000;
const PASSWORD_MIN = 8;

const words = (grant) => `${grant.operations.join(", ")} ${grant.resource_type} ${grant.name}${grant.pattern_type === "PREFIXED" ? "…" : ""}`;
const ends = (token) => {
  if (token.expires_ms === null) return "never";
  return token.expires_ms < Date.now() ? html`<${Badge} kind="bad">ended<//>` : time(token.expires_ms).slice(0, 19);
};

export function User({ name, access }) {
  const where = path`users/${name}`;
  const user = useAnswer(where);
  const maySee = access && (access.is_superuser || access.user === name);
  const tokens = useAnswer(maySee ? `${where}/tokens` : null);
  const again = () => (user.again(), tokens.again());
  return html`<${Head} title=${html`User <${Name} text=${name} />`} calls=${[where, `${where}/tokens`]}><a href=${href("access")}>Access</a><//>
    <${Answered} answer=${user}>${(told) => html`
      <${Facts} facts=${[
        ["Superuser", told.is_superuser ? "yes" : "no"],
        ["Passwords", number(told.password_count)],
        ["Tokens", number(told.token_count)],
        ["SCRAM", told.scram_mechanisms?.join(", ") || "no"],
      ]} />
      <section><h2>Tokens</h2>
        ${maySee
          ? html`<${Answered} answer=${tokens}>${(list) => html`<${Tokens} rows=${list.tokens} where=${where} onDone=${again} />`}<//>`
          : html`<p>Only the user and superusers can see these tokens.</p>`}
      </section>
      <section><h2>Change it</h2><div class="actions">
        ${maySee && html`<${MakeToken} where=${where} onDone=${again} />`}
        <${SetPassword} where=${where} onDone=${again} />
        ${access?.is_superuser && html`<${SetRank} user=${told} where=${where} onDone=${again} />`}
        <${Delete} name=${name} where=${where} />
      </div></section>`}<//>`;
}

function Tokens({ rows, where, onDone }) {
  const [chosen, setChosen] = useState(null);
  const act = async () => {
    await post(`${where}/tokens/${encodeURIComponent(chosen)}`, undefined, "DELETE");
    setChosen(null);
    onDone();
  };
  return html`
    ${chosen && html`<${Action} key=${chosen} summary="Delete a token" verb="Delete it" kind="danger" act=${act} isOpen=${true}><p>From the next request on, clients with the token <${Name} text=${chosen} /> are refused.</p><//>`}
    <${Table} caption="Tokens" rows=${rows} keyOf=${(t) => t.token_id} empty="The user has no tokens." columns=${[
      { head: "Token", cell: (t) => html`<span class="mono">${t.token_id}</span>`, by: (t) => t.token_id },
      { head: "Note", cell: (t) => html`<${Name} text=${t.note || "–"} />`, by: (t) => t.note },
      { head: "Good for", cell: (t) => (t.grants.length ? t.grants.map((grant) => html`<div><${Name} text=${words(grant)} /></div>`) : "everything that its user may do") },
      { head: "Created", kind: "when", cell: (t) => time(t.created_ms).slice(0, 19), by: (t) => t.created_ms },
      { head: "Ends", kind: "when", cell: ends, by: (t) => t.expires_ms ?? Infinity },
      { head: "Delete", cell: (t) => html`<button type="button" class="link" aria-label=${`delete token ${t.token_id}`} onClick=${() => setChosen(t.token_id)}>delete …</button>` },
    ]} />`;
}

function MakeToken({ where, onDone }) {
  const [note, setNote] = useState("");
  const [days, setDays] = useState("90");
  const [isPart, setIsPart] = useState(false);
  const [form, setForm] = useState(NO_RESOURCE);
  const [made, setMade] = useState(null);
  const act = async () => {
    const grant = { resource_type: form.type, name: form.name, pattern_type: form.pattern, operations: [form.operation] };
    const token = await post(`${where}/tokens`, {
      note: note || undefined,
      lifetime_ms: days === "" ? undefined : Math.round(Number(days) * DAY_MS),
      grants: isPart ? [grant] : undefined,
    });
    setMade(token.token);
    onDone();
    return "created; copy it now, it cannot be shown again";
  };
  return html`<${Action} summary="Create a token" verb="Create" act=${act} isReady=${(days === "" || Number(days) > 0) && (!isPart || form.name !== "")}>
    <${Field} label="Note" value=${note} onValue=${setNote} hint="nightly job" />
    <${Field} label="Days" type="number" min="1" value=${days} onValue=${setDays} hint="never expires" />
    <label class="tick"><input type="checkbox" checked=${isPart} onChange=${(e) => setIsPart(e.target.checked)} /> for one operation only</label>
    ${isPart && html`<${Resource} form=${form} onForm=${setForm} />`}
    ${made && html`<div class="wide"><pre tabindex="0" aria-label="the token">${made}</pre><button type="button" onClick=${() => setMade(null)}>I have it</button></div>`}
  <//>`;
}

function SetPassword({ where, onDone }) {
  const [password, setPassword] = useState("");
  const [keeps, setKeeps] = useState(false);
  const [revokes, setRevokes] = useState(false);
  const act = async () => {
    await post(where, { password, keep_previous: keeps || undefined, revoke_tokens: revokes || undefined }, "PUT");
    setPassword("");
    onDone();
    return "changed";
  };
  return html`<${Action} summary="Set the password" verb="Set" act=${act} isReady=${password.length >= PASSWORD_MIN}>
    <${Field} label="New password, 8 characters or more" type="password" autocomplete="new-password" value=${password} onValue=${setPassword} />
    <label class="tick"><input type="checkbox" checked=${keeps} onChange=${(e) => setKeeps(e.target.checked)} /> the previous password stays valid, too</label>
    <label class="tick"><input type="checkbox" checked=${revokes} onChange=${(e) => setRevokes(e.target.checked)} /> delete the user's tokens; otherwise they stay valid</label>
  <//>`;
}

function SetRank({ user, where, onDone }) {
  const act = async () => {
    await post(where, { is_superuser: !user.is_superuser }, "PUT");
    onDone();
  };
  const what = user.is_superuser ? "Remove superuser rights" : "Make superuser";
  return html`<${Danger} summary=${what} verb=${what} name=${user.name} act=${act}>
    <p>${user.is_superuser ? "Then only entries give rights to the user. The last superuser with a password cannot be changed." : "Then the user may do everything, independent of entries."}</p>
  <//>`;
}

function Delete({ name, where }) {
  const act = async () => {
    await post(where, undefined, "DELETE");
    location.hash = href("access");
  };
  return html`<${Danger} summary="Delete the user" verb="Delete it" name=${name} act=${act}>
    <p>This also deletes the user's tokens, and the entries that name the user.</p>
  <//>`;
}
