// The sign-in form, if the cluster asks for credentials.

import { useState } from "./vendor/hooks.js";
import { signInByPassword, signInByToken, signOut } from "./session.js";
import { Failure, Name, href, html } from "./ui.js";

const WAYS = { password: "a user and a password", token: "a token" };

/** The form; `why`: the node's refusal of missing or bad credentials. */
export function Login({ why }) {
  const [way, setWay] = useState("password");
  const [state, setState] = useState({});
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setState({ isBusy: true });
    try {
      await (way === "token" ? signInByToken(form.get("token").trim()) : signInByPassword(form.get("user"), form.get("password")));
    } catch (error) {
      setState({ error });
    }
  };
  return html`<h1 tabindex="-1">Sign in</h1>
    ${why && html`<p class="dim"><${Name} text=${why} /></p>`}
    <form class="login" onSubmit=${submit}>
      <label>With <select value=${way} onChange=${(e) => setWay(e.target.value)}>
        ${Object.entries(WAYS).map(([name, words]) => html`<option value=${name}>${words}</option>`)}
      </select></label>
      ${way === "token"
        ? html`<label>Token <input name="token" type="password" autocomplete="off" required /></label>`
        : html`<label>User <input name="user" autocomplete="username" autocapitalize="none" spellcheck="false" required /></label>
          <label>Password <input name="password" type="password" autocomplete="current-password" required /></label>`}
      <p class="buttons"><button disabled=${state.isBusy}>Sign in</button> <span role="status">${state.isBusy ? "sending …" : ""}</span></p>
      <${Failure} error=${state.error} />
    </form>
    <p class="dim">${way === "token"
      ? "The token stays in this page's memory until you leave or reload the page."
      : "The page creates a token for eight hours and forgets the password. The browser keeps the token for this tab, also when you reload the page. Sign out to delete it."}</p>`;
}

/** The reader's principal in the bar; empty if the cluster needs no credentials. */
export function Who({ access, session }) {
  if (!access || access.mode === "off") return null;
  const isSignedIn = session !== null;
  return html`<span class="me"><a href=${href("access")}><${Name} text=${access.principal} /></a> ${isSignedIn && html`<button type="button" class="link" onClick=${signOut}>Sign out</button>`}</span><br />`;
}
