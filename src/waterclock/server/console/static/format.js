// Numbers, sizes and times as people read them. Times are of the reader's zone, UTC on hover.
import { h } from "./dom.js";

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined || value < 0 ? "–" : plain.format(value));
export const brief = (value) => (value === null || value === undefined || Number.isNaN(value) ? "–" : value < 10000 ? plain.format(value) : short.format(value));

export function rate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(value < 1 ? 2 : 1);
  return brief(value);
}

export function bytes(value) {
  if (value === null || value === undefined || value < 0 || Number.isNaN(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${value < 10 && at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  const left = Math.abs(ms);
  if (left < 1000) return `${Math.round(left)} ms`;
  const seconds = Math.floor(left / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${String(seconds % 60).padStart(2, "0")} s`;
  const hours = Math.floor(seconds / 3600);
  if (hours < 24) return `${hours} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")} m`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const until = (ms, now) => (ms >= now ? `in ${span(ms - now)}` : `${span(now - ms)} ago`);

const two = (value) => String(value).padStart(2, "0");
const dayOf = (t) => `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}`;

export function clock(ms) {
  const t = new Date(ms);
  return `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

export function moment(ms) {
  if (!ms) return "–";
  const t = new Date(ms);
  const isToday = dayOf(t) === dayOf(new Date());
  return isToday ? clock(ms) : `${dayOf(t)} ${clock(ms)}`;
}

// By the clocks of the reader, and how far these are ahead of UTC: so it is the same moment everywhere.
const ahead = (t) => { const minutes = -t.getTimezoneOffset(), size = Math.abs(minutes); return `${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`; };
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
export const stamp = (ms) => { const t = new Date(ms), part = ms % 1000; return `${dayOf(t)}T${clock(ms)}${part ? `.${String(part).padStart(3, "0")}` : ""}${ahead(t)}`; };
export const dated = (ms) => { const t = new Date(ms); return `${DAYS[t.getDay()]} ${dayOf(t)} ${clock(ms)} ${ahead(t)}`; };

// The same moment by UTC, for what shows it on hover.
export const utc = (ms) => new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");

export function time(ms, shown = moment(ms)) {
  if (!ms) return h("span", {}, "–");
  return h("time", { datetime: new Date(ms).toISOString(), title: `${utc(ms)} · ${dayOf(new Date(ms))} ${clock(ms)} here` }, shown);
}

// JSON with its lines broken; digits stay as they came, which parsing would round.
export function pretty(text) {
  try { JSON.parse(text); } catch { return null; }
  let made = "", depth = 0, inText = false;
  const line = () => "\n" + "  ".repeat(depth);
  for (let at = 0; at < text.length; at++) {
    const one = text[at];
    if (inText) {
      made += one;
      if (one === "\\") made += text[++at];
      else if (one === '"') inText = false;
    } else if (one === '"') { inText = true; made += one; }
    else if (one === "{" || one === "[") {
      const close = one === "{" ? "}" : "]";
      let next = at + 1;
      while (/\s/.test(text[next])) next++;
      if (text[next] === close) { made += one + close; at = next; }
      else { depth++; made += one + line(); }
    } else if (one === "}" || one === "]") { depth--; made += line() + one; }
    else if (one === ",") made += one + line();
    else if (one === ":") made += ": ";
    else if (!/\s/.test(one)) made += one;
  }
  return made;
}

// What a member of an object is, as it came, if the object has it.
export function member(text, name) {
  let depth = 0, key = "", start = 0;
  for (const { 0: one, index } of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\]:,]/g)) {
    if (depth === 1 && !start && one[0] === '"') key = JSON.parse(one);
    else if (depth === 1 && one === ":") start = index + 1;
    else if (depth === 1 && (one === "," || one === "}")) {
      if (key === name) return text.slice(start, index).trim();
      start = 0;
    }
    if (one === "{" || one === "[") depth++;
    if (one === "}" || one === "]") depth--;
  }
  return undefined;
}

export function cut(text, length = 160) {
  return text.length > length ? `${text.slice(0, length)}…` : text;
}
