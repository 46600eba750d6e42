// Responses that are refreshed while a page is shown.

import { useEffect, useReducer, useState } from "./vendor/hooks.js";
import { get } from "./api.js";

export const EVERY_MS = 5000;
export const ONCE = null; // In place of an interval: ask until there is a response or a refusal.
const REST = 10; // A slow cluster is asked less often: the pause is ten times the time of the request.

/**
 * Call `look` repeatedly while the tab is visible; return {data, at, error, again}. `data` is from the time `at`. If a
 * later call fails, `error` is set and `data` stays. Another key starts over.
 */
export function useLook(key, look, everyMs = EVERY_MS) {
  const [found, setFound] = useState({});
  const [turn, again] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    if (key === null) return undefined;
    const end = new AbortController();
    let timer;
    const once = async () => {
      const began = performance.now();
      try {
        const data = await look(end.signal);
        if (!end.signal.aborted) setFound({ key, data, at: Date.now() });
        if (everyMs === ONCE) return;
      } catch (error) {
        if (!end.signal.aborted) setFound((last) => ({ ...(last.key === key ? last : { key }), error }));
        if (everyMs === ONCE && error.status < 500) return;
      }
      const pause = Math.max(everyMs ?? EVERY_MS, REST * (performance.now() - began));
      if (!end.signal.aborted) timer = setTimeout(when, pause);
    };
    const when = () => (document.hidden ? document.addEventListener("visibilitychange", once, { once: true, signal: end.signal }) : once());
    once();
    return () => {
      end.abort();
      clearTimeout(timer);
    };
  }, [key, turn]);
  return { ...(found.key === key ? found : {}), again };
}

/** The response of one path; there is no request while it is null. */
export const useAnswer = (where, everyMs) => useLook(where, (signal) => get(where, signal), everyMs);

/** The responses of several paths, each {data} or {error}, in their order. */
export const useAnswers = (paths, everyMs) =>
  useLook(
    paths.join(" "),
    (signal) => Promise.all(paths.map((where) => get(where, signal).then((data) => ({ data }), (error) => ({ error })))),
    everyMs,
  );
