// Messages: publishing one, all of one, and those of a topic, by offset, time and key, or as they come.
import { get, messages, ofKey, part, query, remember } from "./api.js";
import { act, command } from "./action.js";
import { choice, dialog, facts, h, panel } from "./dom.js";
import { count, cut, pretty, span, time } from "./format.js";
import { read as readMoment, told, typed } from "./moments.js";
import { mayPublish } from "./rights.js";
import { Table } from "./table.js";

// What the form cannot show of a message that is published `again` goes along, but for what is no text.
const fits = ([name, text]) => /^[^=\r\n]+$/.test(name) && !/[\r\n]/.test(text);
function noteOf({ key, keyBase64, headers = {}, headersBase64 = {} }) {
  const kept = Object.entries(headers).filter((each) => !fits(each)).map(([name]) => name), lost = Object.keys(headersBase64);
  return [
    keyBase64 ? "Its key is no text, and goes along unless another one is given." : /[\r\n]/.test(key) ? "Its key has line breaks, and goes along as it is unless another one is given." : "",
    kept.length ? `Headers that no line holds go along as they are: ${kept.join(", ")}.` : "",
    lost.length ? `Headers that are no text do not go along: ${lost.join(", ")}.` : "",
  ].filter(Boolean).join(" ");
}

// Without a topic, the form asks for one; `known` are offered.
export function publish(topic, { again = {}, known = [], then } = {}) {
  const headers = Object.entries(again.headers ?? {}), kept = headers.filter((each) => !fits(each));
  const where = topic ? [] : [{ name: "topic", title: "Topic", required: true, known }];
  act({
    title: again.value === undefined ? (topic ? `Publish to ${topic}` : "Publish") : `Publish again to ${topic}`, label: "Publish", note: noteOf(again),
    fields: [...where, { name: "value", title: "Message", kind: "area", value: again.value }, { name: "key", title: "Key", value: again.key }, { name: "headers", title: "Headers, name=value, one a line", kind: "area", isLow: true, value: headers.filter(fits).map((each) => each.join("=")).join("\n") }, { name: "at", title: "When, by your clock: empty is now; 90s, 18:00, tomorrow 9:00, 2026-12-24 18:00", hint: "now", kind: "moment" }],
    asked: (v) => {
      const shown = v.headers.split("\n").filter(Boolean).map((line) => {
        if (line.indexOf("=") < 1) throw new Error(`Header ${line}: write name=value`);
        return [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)];
      });
      const to = topic || v.topic, given = [...kept, ...shown], keyBase64 = v.key ? undefined : again.keyBase64;
      const body = { value: v.value, key: v.key || undefined, keyBase64, headers: given.length ? Object.fromEntries(given) : undefined };
      if (v.at) body.at = v.at;
      const isWritable = !keyBase64 && kept.every(([name]) => /^[^=]+$/.test(name)); // as words of a command
      return { method: "POST", path: `/topics/${part(to)}/messages`, body, cli: isWritable ? command("publish", [to, v.value], ...(v.key ? ["--key", v.key] : []), ...given.flatMap(([name, text]) => ["-H", `${name}=${text}`]), ...(v.at ? ["--at", v.at] : [])) : "" };
    },
    done: (made) => { then?.(); return `Stored at ${made.partition}/${made.offset}`; },
  });
}

export const keyOf = (m) => m.key ?? (m.keyBase64 ? `base64 ${m.keyBase64}` : "");
export const textOf = (m) => m.value ?? (m.valueBase64 !== undefined ? `base64 ${m.valueBase64}` : "");

// All of a message: pretty if it is JSON.
export function body(m) {
  if (m.value === undefined && m.valueBase64 === undefined) return h("p", { class: "dim" }, "No value: a tombstone.");
  const nice = m.value === undefined ? null : pretty(m.value);
  return h("pre", { class: "message", tabindex: "0", "aria-label": "Value" }, nice ?? textOf(m));
}

export function headersOf(m) {
  return [...Object.entries(m.headers ?? {}), ...Object.entries(m.headersBase64 ?? {}).map(([name, text]) => [name, `base64 ${text}`])];
}

// What was scheduled is stored anew when it fires: so long after it was due.
function lateness(m) {
  if (!m.dueMs || !m.appendedMs || m.appendedMs < m.dueMs) return null;
  const late = m.appendedMs - m.dueMs;
  return h("span", { class: late > 1000 ? "warn" : "dim", title: `Fired ${span(late)} after it was due` }, `+${span(late)}`);
}

export function whole(topic, m) {
  const tools = [h("button", { type: "button", autofocus: true, onclick: () => box.close() }, "Close")];
  if (mayPublish(topic) && m.value !== undefined) tools.unshift(h("button", { type: "button", onclick: () => { box.close(); publish(topic, { again: m }); } }, "Publish again…"));
  const box = dialog(`${topic} ${m.partition}/${m.offset}`,
    facts([["Key", keyOf(m)], ["Id", m.messageId ?? m.messageIdBase64], ["Due", m.dueMs ? time(m.dueMs) : ""], ["Stored", m.appendedMs ? h("span", {}, time(m.appendedMs), " ", lateness(m) ?? "") : ""], ...headersOf(m).map(([name, text]) => [`header ${name}`, text])]),
    h("h3", {}, "Value"), body(m), h("div", { class: "buttons" }, ...tools));
  return box;
}

const SHOWN_MAX = 200;
const PAGE = 50;
const KEY_LOOK_MAX = 100000;
const KEY_STEP = 500;
const PARTITIONS_MAX = 32;
const SPAN_MAX = 3200;

// The newest messages below an offset: not every offset is one of a message.
async function below(topic, info, end, most, signal) {
  for (let span_ = most; ; span_ *= 8) {
    const start = Math.max(info.startOffset, end - span_);
    const found = start < end ? (await messages(topic, info.partition, start, end - start, signal)).filter((m) => m.offset < end) : [];
    if (found.length >= most || start <= info.startOffset || span_ >= SPAN_MAX) return { low: start, found: found.slice(-most) };
  }
}

// The newest of a key below an offset, among so many that one look is not too long for the node.
async function belowOfKey(topic, info, key, end, { most, lookMax, signal }) {
  let low = end, found = [];
  for (let step = KEY_STEP; low > info.startOffset && found.length < most && end - low < lookMax; step *= 8) {
    const start = Math.max(info.startOffset, low - step, end - lookMax);
    found = [...(await ofKey(topic, info.partition, key, { offset: start, end: low, signal })).found, ...found];
    low = start;
  }
  return found.length > most ? { low: found.at(-most).offset, found: found.slice(-most) } : { low, found };
}

const places = (text) => new Map(text.split(",").filter(Boolean).map((each) => each.split(":").map(Number)));
const written = (map) => [...map].map((each) => each.join(":")).join(",");

// `info()` is what is known of the topic; what is looked at stands in the address.
export function browser(topic, info, at) {
  const asked = Object.fromEntries(["partition", "offset", "time", "key", "before", "from", "follow", "message"].map((name) => [name, at.query.get(name) ?? ""]));
  const table = new Table("messages", [
    { title: "Stored", kind: "when", same: (m) => String(m.appendedMs), cell: (m) => [time(m.appendedMs), " ", lateness(m)] },
    { title: "Position", kind: "num", same: () => "", cell: (m) => h("button", { type: "button", class: "plain mono", onclick: () => show(m), "aria-label": `Show message ${m.partition}/${m.offset}` }, `${m.partition}/${m.offset}`) },
    { title: "Key", kind: "name", cell: (m) => cut(keyOf(m), 60) },
    { title: "Value", kind: "body", cell: (m) => cut(textOf(m) || "∅") },
  ], { key: (m) => `${m.partition}/${m.offset}`, none: "No message here." });
  const partition = h("select", { "aria-label": "Partition" }, h("option", { value: "" }, "all partitions"));
  const offset = h("input", { placeholder: "offset", inputmode: "numeric", size: "9", "aria-label": "From offset", value: asked.offset });
  const since = h("input", { placeholder: "time: 18:00, 1h ago", size: "18", "aria-label": "From time", title: "By your clock", value: Number.isNaN(Date.parse(asked.time)) ? "" : typed(Date.parse(asked.time)) });
  const key = h("input", { placeholder: "key", size: "12", "aria-label": "Only of this key", value: asked.key });
  const said = h("span", { class: "dim", "aria-live": "polite" });
  const older = h("button", { type: "button", class: "small", onclick: () => turn({ before: written(lows), from: "" }) }, "‹ Older");
  const newer = h("button", { type: "button", class: "small", onclick: () => turn({ from: written(highs), before: "" }) }, "Newer ›");
  const pager = h("div", { class: "pager" }, older, newer);
  let stop = new AbortController();
  let againMs = null; // of the time, if clocks show it twice
  let shown = [], lows = new Map(), highs = new Map();

  const keep = (isStep) => remember(`topics/${part(topic)}`, asked, isStep);
  const turn = (changes) => { Object.assign(asked, changes); keep(true); return load(); };
  const isOldestFirst = () => asked.offset !== "" || asked.time !== "";
  const show = (m) => {
    asked.message = `${m.partition}/${m.offset}`;
    keep();
    whole(topic, m).addEventListener("close", () => { asked.message = ""; keep(); });
  };

  // Those partitions of which something is to be read.
  const chosen = async () => {
    const known = info() ?? (await get(`/topics/${part(topic)}`));
    const all = known.partitions.filter((each) => each.endOffset > each.startOffset && isChosen(each));
    return { read: all.slice(0, PARTITIONS_MAX), left: Math.max(0, all.length - PARTITIONS_MAX) };
  };
  const starts = async (read) => {
    if (asked.before) return null;
    if (asked.from) return places(asked.from);
    if (asked.offset) return new Map(read.map((each) => [each.partition, Number(asked.offset) || 0]));
    if (asked.time) return new Map((await get(query(`/topics/${part(topic)}/offsets`, { timeMs: Date.parse(asked.time) }))).positions.map((each) => [each.partition, each.offset]));
    return null;
  };
  const newestFirst = (a, b) => b.appendedMs - a.appendedMs || b.offset - a.offset;

  const read = async (signal) => {
    const { read: partitions, left } = await chosen();
    const many = Math.max(1, partitions.length);
    const most = Math.max(5, Math.min(asked.key ? SHOWN_MAX : PAGE, Math.floor(SHOWN_MAX / many)));
    const first = await starts(partitions), ends = places(asked.before);
    const parts = await Promise.all(partitions.map(async (each) => {
      const end = Math.min(each.endOffset, ends.get(each.partition) ?? each.endOffset);
      if (first === null && asked.key) return { each, end, ...(await belowOfKey(topic, each, asked.key, end, { most, lookMax: Math.max(5000, Math.floor(KEY_LOOK_MAX / many)), signal })) };
      if (first === null) return { each, end, ...(await below(topic, each, end, most, signal)) };
      const start = Math.max(first.get(each.partition) ?? each.startOffset, each.startOffset);
      if (asked.key && start < each.endOffset) {
        const { found, next } = await ofKey(topic, each.partition, asked.key, { offset: start, count: most, signal });
        return { each, low: start, end: next, found };
      }
      const found = start < each.endOffset ? await messages(topic, each.partition, start, most, signal) : [];
      return { each, low: start, end: found.length < most ? each.endOffset : found.at(-1).offset + 1, found };
    }));
    lows = new Map(parts.map(({ each, low, found }) => [each.partition, found.length && !asked.key ? found[0].offset : low]));
    highs = new Map(parts.map(({ each, end }) => [each.partition, end]));
    older.disabled = parts.every(({ each }) => lows.get(each.partition) <= each.startOffset);
    newer.disabled = parts.every(({ each }) => highs.get(each.partition) >= each.endOffset);
    pager.classList.toggle("hidden", older.disabled && newer.disabled);
    shown = parts.flatMap(({ found }) => found).sort(newestFirst);
    if (isOldestFirst()) shown.reverse();
    table.update(shown);
    const looked = parts.reduce((sum, { low, end }) => sum + Math.max(0, end - low), 0);
    const further = [[older, "Older"], [newer, "Newer"]].filter(([button]) => !button.disabled).map(([, title]) => `“${title}”`);
    const words = [asked.time ? `from ${told({ timeMs: Date.parse(asked.time), againMs })}` : "", asked.key ? `${count(shown.length)} of this key at ${count(looked)} offsets${further.length ? `: ${further.join(" and ")} for the rest` : ""}` : "", left ? `${count(left)} more partitions: choose one` : ""];
    said.textContent = words.filter(Boolean).join("; ");
  };

  const offer = () => { if (partition.options.length === 1) info()?.partitions.forEach((each) => partition.append(h("option", { value: String(each.partition), selected: String(each.partition) === asked.partition }, `partition ${each.partition}`))); };
  const load = async () => {
    if (asked.follow) return;
    stop.abort();
    const mine = (stop = new AbortController());
    offer();
    try { await read(mine.signal); } catch (error) { if (error.name !== "AbortError") said.textContent = error.message; }
  };

  // From the end on; after a rest from where it was.
  let ends = null;
  const tail = async (isAfterRest = false) => {
    stop.abort();
    const mine = (stop = new AbortController());
    if (!isAfterRest || !ends) await begin();
    await follow(mine);
  };
  const begin = async () => {
    shown = [];
    ends = null;
    table.update([]);
    ends = new Map((await get(`/topics/${part(topic)}`)).partitions.map((each) => [each.partition, each.endOffset]));
    said.textContent = "waiting for messages";
  };
  const isChosen = (each) => asked.partition === "" || String(each.partition) === asked.partition;
  const follow = async (mine) => {
    while (!mine.signal.aborted) {
      try {
        // Of all partitions: one that is not named is news at once. Of one that nobody led the end is not known.
        const beyond = written(new Map([...ends].map(([number, end]) => [number, Math.max(0, end)])));
        const { partitions } = await get(query(`/topics/${part(topic)}/ends`, { beyond, waitMs: 20000 }), { signal: mine.signal });
        for (const each of partitions.filter((one) => one.endOffset > (ends.get(one.partition) ?? -1))) {
          const known = ends.get(each.partition) ?? 0, first = Math.max(known, each.endOffset - SHOWN_MAX);
          const isRead = known >= 0 && known < each.endOffset && isChosen(each);
          const found = !isRead ? [] : asked.key ? (await ofKey(topic, each.partition, asked.key, { offset: known, end: each.endOffset, signal: mine.signal })).found : (await messages(topic, each.partition, first, each.endOffset - first, mine.signal)).filter((m) => m.offset < each.endOffset);
          shown = [...found, ...shown];
          ends.set(each.partition, each.endOffset);
        }
        shown = shown.sort(newestFirst).slice(0, SHOWN_MAX);
        table.update(shown);
        said.textContent = `following, ${shown.length} shown`;
      } catch (error) {
        if (mine.signal.aborted) return;
        said.textContent = error.message;
      }
      await new Promise((done) => setTimeout(done, 300));
    }
  };

  // From the beginning again, as another stretch is asked for.
  const anew = async () => {
    const from = since.value.trim() ? await readMoment(since.value, true) : { timeMs: null };
    if (from.wrong) { said.textContent = from.wrong; return; }
    againMs = from.againMs;
    await turn({ partition: partition.value, offset: offset.value.trim(), time: from.timeMs === null ? "" : new Date(from.timeMs).toISOString(), key: key.value, before: "", from: "" });
    if (asked.follow) await tail();
  };
  [partition, offset, since, key].forEach((each) => each.addEventListener("change", anew));
  const pick = (value, isFirst = false) => { asked.follow = value; keep(!isFirst); if (value) { pager.classList.add("hidden"); tail(); } else { said.textContent = ""; load(); } };
  const mode = choice("What to show", [["", "Browse"], ["live", "Follow live"]], asked.follow ? "live" : "", pick);

  // The one that the address names.
  const open = async () => {
    const [number, place] = asked.message.split("/").map(Number);
    const [found] = await messages(topic, number, place, 1, stop.signal).catch(() => []);
    if (found?.offset === place) show(found);
    else said.textContent = `There is no message ${asked.message} any more.`;
  };
  return {
    element: panel("Messages", [said, partition, offset, since, key, mode], table.element, pager),
    async load() { offer(); if (asked.follow) pick("live", true); else await load(); if (asked.message) await open(); },
    again: () => (asked.follow ? undefined : load()),
    rest: () => asked.follow && stop.abort(),
    seen: () => asked.follow && tail(true),
    close: () => stop.abort(),
  };
}
