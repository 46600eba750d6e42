// Answers that stay fresh while a page is shown.

import { useEffect, useReducer, useState } from "./vendor/hooks.js";
import { get } from "./api.js";

export const EVERY_MS = 5000;
export const ONCE = null; // In place of a time: asked until there is an answer, or a refusal.
const REST = 10; // A cluster that takes long to answer is asked less often: one part asking, ten parts not.

/**
 * What `look` found, again and again while the tab is seen. {data, at, error, again}: `data` is of the time `at`, also
 * while `error` says that nothing newer could be had. Another key is another question.
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

/** The answer of one path; none is asked while it is null. */
export const useAnswer = (where, everyMs) => useLook(where, (signal) => get(where, signal), everyMs);

/** The answers of several paths, each {data} or {error}, in their order. */
export const useAnswers = (paths, everyMs) =>
  useLook(
    paths.join(" "),
    (signal) => Promise.all(paths.map((where) => get(where, signal).then((data) => ({ data }), (error) => ({ error })))),
    everyMs,
  );
