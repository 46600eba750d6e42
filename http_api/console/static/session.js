// The reader's session. A token that the page creates is stored for this tab; one that the reader enters is not.

import { useEffect, useReducer } from "./vendor/hooks.js";
import { ask, credentials, path } from "./api.js";
import { base64Of } from "./text.js";

const LIFETIME_MS = 8 * 3600 * 1000;
const JSON_TYPE = "application/json";

/** The current session, or null; components that use it render again when it changes. */
export function useSession() {
  const [, again] = useReducer((n) => n + 1, 0);
  useEffect(() => credentials.listen(again), []);
  return credentials.session;
}

const LIMIT_REACHED = 40930;

/**
 * Exchange a password for a token of LIFETIME_MS, and forget the password. Signing out deletes the token. A user that
 * has reached the limit of tokens signs in with the password itself, and can then delete some.
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
  // Check the token first, so that the form shows the refusal of a wrong one. It may never expire, so it is not stored.
  await ask("GET", "access", { headers: { Authorization: header } });
  credentials.take({ header });
}

export async function signOut() {
  const { user, tokenId } = credentials.session ?? {};
  try {
    if (tokenId) await ask("DELETE", path`users/${user}/tokens/${tokenId}`);
  } catch {
    // The token expires by itself; the page only has to drop it.
  }
  credentials.drop();
}
