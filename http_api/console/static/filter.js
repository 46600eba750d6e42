// A filter for records, as a reader types it: value.status >= 500 and header.trace contains "ab". Pure.
//
// The grammar is closed: the parser below turns the text into tests, and no part of the text is ever executed. There are
// no patterns, because regular expressions can run forever, and no calls. Only a record's own names are its fields, so
// `value.constructor` is a field like any other.
//
//   any    := all ("or" all)*
//   all    := one ("and" one)*
//   one    := "not" one | "(" any ")" | place ("exists" | operator literal)
//   place  := ("key" | "value" | "header" | "partition" | "offset" | "timestamp") ("." name | "[" number or "text" "]")*
//   literal := "text" | number | true | false | null

import { bytesOf, textOf } from "./text.js";

const LENGTH_MAX = 2000;
const DEPTH_MAX = 30;
const ROOTS = ["key", "value", "header", "partition", "offset", "timestamp"];
const TOKEN = /\s*(?:(?<text>"(?:[^"\\]|\\.)*")|(?<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?<sign><=|>=|!=|[=<>()[\].])|(?<word>[\p{L}_$][\p{L}\p{N}_$-]*))/uy;

/** The text is not a filter; `at` is the position of the first error. */
export class FilterError extends Error {
  constructor(message, at) {
    super(message);
    this.at = at;
  }
}

function tokens(text) {
  const found = [];
  let at = 0;
  while (text.slice(at).trim()) {
    TOKEN.lastIndex = at;
    const match = TOKEN.exec(text);
    if (!match) throw new FilterError(`no part of a filter starts with “${text.slice(at).trim().slice(0, 10)}”`, at);
    const [kind, shown] = Object.entries(match.groups).find(([, value]) => value !== undefined);
    found.push({ kind, text: shown, at: TOKEN.lastIndex - shown.length });
    at = TOKEN.lastIndex;
  }
  return found;
}

const bothAre = (type, test) => (a, b) => typeof a === type && typeof b === type && test(a, b);
const ordered = (test) => (a, b) => (typeof a === "number" || typeof a === "string") && typeof a === typeof b && test(a, b);
const OPERATORS = {
  "=": (a, b) => a === b,
  "!=": (a, b) => a !== b,
  "<": ordered((a, b) => a < b),
  "<=": ordered((a, b) => a <= b),
  ">": ordered((a, b) => a > b),
  ">=": ordered((a, b) => a >= b),
  contains: (a, b) => (Array.isArray(a) ? a.includes(b) : bothAre("string", (x, y) => x.includes(y))(a, b)),
  begins: bothAre("string", (a, b) => a.startsWith(b)),
  ends: bothAre("string", (a, b) => a.endsWith(b)),
};
const WORDS = { true: true, false: false, null: null };

class Parser {
  constructor(text) {
    this.all = tokens(text);
    this.end = text.length;
    this.next = 0;
    this.depth = 0;
  }

  get token() {
    return this.all[this.next];
  }

  fail(wanted) {
    const found = this.token ? `“${this.token.text}”` : "the end";
    throw new FilterError(`${wanted} is missing before ${found}`, this.token?.at ?? this.end);
  }

  takes(text, kind) {
    if (this.token?.text !== text || (kind && this.token.kind !== kind)) return false;
    this.next++;
    return true;
  }

  list(word, part, join) {
    const parts = [part()];
    while (this.takes(word, "word")) parts.push(part());
    return parts.length === 1 ? parts[0] : join(parts);
  }

  any() {
    return this.list("or", () => this.every(), (parts) => (record) => parts.some((part) => part(record)));
  }

  every() {
    return this.list("and", () => this.one(), (parts) => (record) => parts.every((part) => part(record)));
  }

  one() {
    if (++this.depth > DEPTH_MAX) throw new FilterError("it is nested too deeply", this.token?.at ?? this.end);
    const test = this.inner();
    this.depth--;
    return test;
  }

  inner() {
    if (this.takes("not", "word")) {
      const test = this.one();
      return (record) => !test(record);
    }
    if (!this.takes("(", "sign")) return this.test();
    const test = this.any();
    if (!this.takes(")", "sign")) this.fail("“)”");
    return test;
  }

  test() {
    const place = this.place();
    if (this.takes("exists", "word")) return (record) => place(record) !== undefined;
    const operator = Object.hasOwn(OPERATORS, this.token?.text ?? "") && this.token.kind !== "text" ? OPERATORS[this.token.text] : this.fail("an operator such as =, < or contains");
    this.next++;
    const literal = this.literal();
    return (record) => operator(place(record), literal);
  }

  place() {
    if (this.token?.kind !== "word" || !ROOTS.includes(this.token.text)) this.fail(`one of ${ROOTS.join(", ")}`);
    const root = this.token.text;
    this.next++;
    const steps = [];
    for (;;) {
      if (this.takes(".", "sign")) steps.push(this.step(["word"], "a name"));
      else if (this.takes("[", "sign")) {
        steps.push(this.step(["number", "text"], "a number or a “text”"));
        if (!this.takes("]", "sign")) this.fail("“]”");
      } else return (record) => look(record, root, steps);
    }
  }

  step(kinds, wanted) {
    const { kind, text } = kinds.includes(this.token?.kind) ? this.token : this.fail(wanted);
    const step = kind === "word" ? text : this.value(text);
    this.next++;
    return String(step);
  }

  value(text) {
    try {
      return JSON.parse(text);
    } catch {
      throw new FilterError(`${text} is not JSON`, this.token.at);
    }
  }

  literal() {
    const { kind, text } = this.token ?? {};
    const isWord = kind === "word" && Object.hasOwn(WORDS, text);
    if (!isWord && kind !== "text" && kind !== "number") this.fail("a “text”, a number, true, false or null");
    const value = isWord ? WORDS[text] : this.value(text);
    this.next++;
    return value;
  }
}

const textOfBytes = (base64) => {
  const bytes = bytesOf(base64);
  return bytes === null ? null : (textOf(bytes) ?? undefined);
};

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/**
 * The value at a place of a record; undefined if there is none. Without a step it is the text of a key or a value, or the
 * content of its JSON string. With steps it is the value at that place of their JSON.
 */
function look(record, root, steps) {
  if (root === "header") {
    const [name, ...rest] = steps;
    const header = record.headers?.findLast((one) => one.key === name);
    return header && within(textOfBytes(header.value), rest);
  }
  if (root !== "key" && root !== "value") return steps.length ? undefined : record[root];
  return within(textOfBytes(record[root]), steps);
}

function within(text, steps) {
  if (typeof text !== "string") return steps.length ? undefined : text;
  // A JSON string is compared by its content, without its quotes.
  if (!steps.length) return text.startsWith('"') ? (parsed(text) ?? text) : text;
  let found = parsed(text);
  for (const step of steps) {
    if (found === null || typeof found !== "object" || !Object.hasOwn(found, step)) return undefined;
    found = found[step];
  }
  return found;
}

/** Parse a filter into a test: record → true if it passes. Throws FilterError. */
export function filterOf(text) {
  if (text.length > LENGTH_MAX) throw new FilterError(`it is longer than ${LENGTH_MAX} characters`, LENGTH_MAX);
  const parser = new Parser(text);
  const test = parser.any();
  if (parser.token) parser.fail("“and” or “or”");
  return test;
}
