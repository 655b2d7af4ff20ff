// Requests to the node. The credential goes in a header, as that of any client: there is no cookie.

const KEPT = "waterclock.credential";
const PATIENCE_MS = 30000; // longer than any node waits for something to tell
let credential = sessionStorage.getItem(KEPT) ?? "";
export const onLogin = { needed: () => {}, refused: () => {} };

export class Problem extends Error {
  constructor(status, said) {
    super(said.detail || said.title || `HTTP ${status}`);
    this.status = status;
    this.said = said;
  }
}

export const hasCredential = () => credential !== "";

export function keep(given) {
  credential = given.trim();
  if (credential) sessionStorage.setItem(KEPT, credential);
  else sessionStorage.removeItem(KEPT);
}

// A body is a value, or JSON that stands already: parsed, its numbers would be rounded.
export const written = (body) => (typeof body === "string" ? body : JSON.stringify(body));

export async function ask(method, path, { body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (credential) headers.Authorization = `Bearer ${credential}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, signal, cache: "no-store", credentials: "omit", body: written(body) });
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    if (answer.status === 401) onLogin.needed();
    if (answer.status === 403) onLogin.refused();
    throw new Problem(answer.status, said);
  }
  return answer;
}

// Stops when another signal says so, and hears of it no longer once it has stopped.
function stopping(signal) {
  const stop = new AbortController(), end = () => stop.abort(signal.reason);
  if (signal?.aborted) end();
  signal?.addEventListener("abort", end, { signal: stop.signal });
  return stop;
}

export async function get(path, { signal } = {}) {
  const stop = stopping(signal), timer = setTimeout(() => stop.abort(new Error("The node does not answer in time.")), PATIENCE_MS);
  try {
    return await (await ask("GET", path, { signal: stop.signal })).json();
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

export async function send(method, path, body) {
  const answer = await ask(method, path, { body });
  return answer.status === 204 ? null : answer.json();
}

export const part = encodeURIComponent;

// Part of an address, also of one that somebody typed.
export function plain(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

export function query(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

// What is asked of a page stands in its address, so that it can be shared; it is no other page. What
// is a step of the reader, as to turn over, the browser's way back undoes. A page that was left already,
// whose last window just closes, has nothing to say there.
export function remember(path, asked, isStep = false) {
  const here = location.hash.replace(/^#\/?/, "").split("?")[0], wanted = query(`#/${path}`, asked);
  if (plain(here) !== plain(path) || location.hash === wanted) return;
  if (isStep) window.history.pushState(null, "", wanted);
  else window.history.replaceState(null, "", wanted);
}

// Calls `take` with each line of an answer, until it says false.
export async function lines(path, take, { signal, separator = "\n" } = {}) {
  const stop = stopping(signal);
  let rest = "";
  try {
    const answer = await ask("GET", path, { signal: stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(separator);
      rest = parts.pop();
      for (const one of parts) if (one && take(one) === false) return;
    }
  } finally {
    stop.abort();
  }
}

// The messages of a partition from an offset on.
export async function messages(topic, partition, offset, most, signal) {
  const found = [];
  const path = query(`/topics/${part(topic)}/partitions/${partition}/messages`, { offset, count: most });
  await lines(path, (line) => {
    const one = JSON.parse(line);
    if (one.finished) return false;
    found.push(one);
    return true;
  }, { signal });
  return found;
}

// Those of a key from an offset on, or in [offset, end); the node looks for them. `next` is how far it looked.
export async function ofKey(topic, partition, key, { offset, end, count, signal }) {
  const found = [], wanted = key.startsWith("base64 ") ? { keyBase64: key.slice(7) } : { key };
  for (let next = offset; ;) {
    let last = null;
    await lines(query(`/topics/${part(topic)}/partitions/${partition}/messages`, { ...wanted, offset: next, end, count }), (line) => {
      const one = JSON.parse(line);
      if (one.finished) last = one;
      else found.push(one);
      return !one.finished;
    }, { signal });
    if (!last) throw new Error("The node broke off while it looked for the key.");
    next = last.nextOffset;
    if (!end || next >= end || last.isAtEnd) return { found, next };
  }
}

// What is now, told by the node until `stop` is called; one connection, opened again if it breaks.
export function live(path, take, changed) {
  const stop = new AbortController();
  const run = async () => {
    let delay = 500;
    while (!stop.signal.aborted) {
      const once = new AbortController();
      const end = () => once.abort();
      stop.signal.addEventListener("abort", end, { once: true });
      let silence;
      const heard = () => { clearTimeout(silence); silence = setTimeout(() => once.abort(), 15000); };
      try {
        heard();
        await lines(path, (event) => {
          heard();
          delay = 500;
          if (event.startsWith("data: ")) { changed("live"); take(JSON.parse(event.slice(6))); }
          return true;
        }, { signal: once.signal, separator: "\n\n" });
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error.status === 401) return changed("login");
        if (error.status === 403) return changed("forbidden");
      } finally {
        clearTimeout(silence);
        stop.signal.removeEventListener("abort", end); // a node may be away for days
      }
      if (stop.signal.aborted) return;
      changed("away");
      await new Promise((done) => setTimeout(done, delay));
      delay = Math.min(delay * 2, 4000);
    }
  };
  run();
  return () => stop.abort();
}
