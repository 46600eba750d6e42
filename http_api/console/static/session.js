// Who the reader is to the cluster. A token of a few hours is kept for this tab; one that the reader has given is not.

import { useEffect, useReducer } from "./vendor/hooks.js";
import { ask, credentials, path } from "./api.js";
import { base64Of } from "./text.js";

const LIFETIME_MS = 8 * 3600 * 1000;
const JSON_TYPE = "application/json";

/** The present session, null: nobody signed in; whoever shows it is told when it changes. */
export function useSession() {
  const [, again] = useReducer((n) => n + 1, 0);
  useEffect(() => credentials.listen(again), []);
  return credentials.session;
}

const LIMIT_REACHED = 40930;

/**
 * A password is asked for a token of a few hours, and forgotten; the token goes when the reader signs out. A user that
 * has as many tokens as it may have signs in with the password itself, and can delete some.
 */
export async function signInByPassword(user, password) {
  const basic = base64Of(new TextEncoder().encode(`${user}:${password}`));
  const body = JSON.stringify({ note: "console", lifetime_ms: LIFETIME_MS });
  let made;
  try {
    made = await ask("POST", path`users/${user}/tokens`, { body, type: JSON_TYPE, headers: { Authorization: `Basic ${basic}` } });
  } catch (error) {
    if (error.code !== LIMIT_REACHED) throw error;
    credentials.take({ header: `Basic ${basic}`, user });
    return;
  }
  credentials.take({ header: `Bearer ${made.token}`, user, tokenId: made.token_id, endsMs: Date.now() + LIFETIME_MS });
}

export async function signInByToken(token) {
  const header = `Bearer ${token}`;
  // Asked before it is taken: a wrong one is refused here, in the form. It may never end: storage is no place for it.
  await ask("GET", "access", { headers: { Authorization: header } });
  credentials.take({ header });
}

export async function signOut() {
  const { user, tokenId } = credentials.session ?? {};
  try {
    if (tokenId) await ask("DELETE", path`users/${user}/tokens/${tokenId}`);
  } catch {
    // It ends by itself; what matters here is that this page has it no more.
  }
  credentials.drop();
}
