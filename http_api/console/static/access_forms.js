// Forms that change access: create users, add and remove entries, change the mode.

import { useState } from "./vendor/hooks.js";
import { path, post } from "./api.js";
import { Action, Danger, Field, Name, href, html } from "./ui.js";

const OPERATIONS = {
  TOPIC: ["READ", "WRITE", "DESCRIBE", "CREATE", "DELETE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALL"],
  GROUP: ["READ", "DESCRIBE", "DELETE", "ALL"],
  CLUSTER: ["DESCRIBE", "ALTER", "CREATE", "IDEMPOTENT_WRITE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "CLUSTER_ACTION", "ALL"],
  TRANSACTIONAL_ID: ["WRITE", "DESCRIBE", "ALL"],
};
const CLUSTER_NAME = "kafka-cluster";
const PASSWORD_MIN = 8;

const Choose = ({ label, value, of, onValue }) =>
  html`<label>${label} <select value=${value} onChange=${(e) => onValue(e.target.value)}>${of.map((one) => html`<option value=${one}>${one.toLowerCase().replaceAll("_", " ")}</option>`)}</select></label>`;

/** Fields for an operation and its resource, for entries and tokens. */
export function Resource({ form, onForm }) {
  const set = (name) => (value) => onForm({ ...form, [name]: value });
  const setType = (type) => onForm({ ...form, type, name: type === "CLUSTER" ? CLUSTER_NAME : "", operation: OPERATIONS[type][0], pattern: "LITERAL" });
  return html`
    <${Choose} label="On a" value=${form.type} of=${Object.keys(OPERATIONS)} onValue=${setType} />
    <${Choose} label="Operation" value=${form.operation} of=${OPERATIONS[form.type]} onValue=${set("operation")} />
    ${form.type !== "CLUSTER" && html`
      <${Field} label="Name" value=${form.name} onValue=${set("name")} hint="orders" />
      <label>Of <select value=${form.pattern} onChange=${(e) => set("pattern")(e.target.value)}>
        <option value="LITERAL">this name (* is all)</option><option value="PREFIXED">names that begin with it</option>
      </select></label>`}`;
}

export const NO_RESOURCE = { type: "TOPIC", operation: "READ", name: "", pattern: "LITERAL" };

export function MakeUser({ isSuperuser, onDone }) {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [isSuper, setIsSuper] = useState(false);
  const isReady = name !== "" && (password === "" || password.length >= PASSWORD_MIN);
  const act = async () => {
    await post(path`users/${name}`, { password: password || undefined, is_superuser: isSuper || undefined }, "PUT");
    setPassword("");
    onDone();
    return html`created <a href=${href("access", name)}><${Name} text=${name} /></a>`;
  };
  return html`<${Action} summary="Create a user" verb="Create" act=${act} isReady=${isReady}>
    <${Field} label="Name" value=${name} onValue=${setName} hint="letters, digits, . _ - @" />
    <${Field} label="Password, 8 characters or more" type="password" autocomplete="new-password" value=${password} onValue=${setPassword} hint="none: only tokens" />
    ${isSuperuser
      ? html`<label class="tick"><input type="checkbox" checked=${isSuper} onChange=${(e) => setIsSuper(e.target.checked)} /> superuser: may do everything</label>`
      : html`<p class="dim">Only superusers can create superusers.</p>`}
    <p>The user has no rights until an entry allows something.</p>
  <//>`;
}

export function AddEntry({ where, onDone }) {
  const [principal, setPrincipal] = useState("User:");
  const [permission, setPermission] = useState("ALLOW");
  const [host, setHost] = useState("");
  const [form, setForm] = useState(NO_RESOURCE);
  const isReady = /^(User|Group):./.test(principal) && form.name !== "";
  const act = async () => {
    await post(where, {
      principal, permission, host: host || "*",
      operation: form.operation, resource_type: form.type, resource_name: form.name, pattern_type: form.pattern,
    });
    onDone();
    return "the entry applies now";
  };
  return html`<${Action} summary="Add an entry" verb="Add" act=${act} isReady=${isReady}>
    <${Field} label="Principal" value=${principal} onValue=${setPrincipal} hint="User:alice, Group:ops, User:*" />
    <${Choose} label="May or may not" value=${permission} of=${["ALLOW", "DENY"]} onValue=${setPermission} />
    <${Resource} form=${form} onForm=${setForm} />
    <${Field} label="From the address" value=${host} onValue=${setHost} hint="any" />
  <//>`;
}

export function RemoveEntry({ sentence, where, onDone }) {
  const act = async () => {
    await post(where, undefined, "DELETE");
    onDone();
  };
  return html`<${Action} summary="Remove an entry" verb="Remove it" kind="danger" act=${act} isOpen=${true}>
    <p><${Name} text=${sentence} /></p>
    <p>It stops applying with the next request.</p>
  <//>`;
}

export function ChangeMode({ access, users, onDone }) {
  const [mode, setMode] = useState(access?.mode ?? "off");
  if (!access) return null;
  if (!access.is_superuser) return html`<p class="action dim">Only superusers can change the mode, and you are not one.</p>`;
  const hasSuperuser = users?.some((user) => user.is_superuser && user.password_count > 0);
  const act = async () => {
    await post("access", { mode }, "PUT");
    onDone();
  };
  return html`<${Danger} summary="Change the mode" verb="Change it" name=${mode} act=${act} isReady=${mode !== access.mode}>
    <${Choose} label="Mode" value=${mode} of=${["off", "optional", "required"]} onValue=${setMode} />
    ${mode === "required" && users && !hasSuperuser && html`<p class="box warn">No superuser has a password. Create one first: otherwise no user can change anything afterwards.</p>`}
    ${mode === "off" && html`<p class="box warn">Then every client that reaches a node may do everything.</p>`}
    <p>Before “required”, use “optional” for a while: nodes log <code>would be refused</code> for each client that “required” would refuse.</p>
  <//>`;
}
