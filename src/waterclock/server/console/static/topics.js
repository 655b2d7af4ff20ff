// Topics: the list, and one of them with its partitions, its messages, and what can be done with it.
import { get, messages, part, query } from "./api.js";
import { act, command, shell } from "./action.js";
import { choice, dialog, facts, h, later, panel } from "./dom.js";
import { brief, bytes, count, cut, pretty, rate, span, time } from "./format.js";
import { columns, plot } from "./plot.js";
import { may, who } from "./rights.js";
import { Pager, Table } from "./table.js";

const LIMIT = 50;
export const link = (topic) => h("a", { href: `#/topics/${part(topic)}` }, topic);

// A list that the node filters, sorts and pages; what is asked of it stands in the address.
export function listed({ at, view, columns: shown, key, none, label, path, rowsOf }) {
  const asked = { view, filter: at.query.get("filter") ?? "", sort: at.query.get("sort") ?? "name", descending: at.query.get("descending") === "true", start: Number(at.query.get("start") ?? 0), limit: LIMIT };
  const turn = (changes) => {
    Object.assign(asked, changes);
    const said = { filter: asked.filter, sort: asked.sort === "name" ? "" : asked.sort, descending: asked.descending ? "true" : "", start: asked.start || "" };
    history.replaceState(null, "", query(`#/${path}`, said));
    at.follow();
  };
  const table = new Table(label, shown, { key, none, sort: { by: asked.sort, descending: asked.descending }, onsort: ({ by, descending }) => turn({ sort: by, descending, start: 0 }) });
  const pager = new Pager(LIMIT, (start) => turn({ start }));
  const search = h("input", { type: "search", placeholder: "Filter by name", "aria-label": `Filter ${label}`, value: asked.filter, oninput: later(() => turn({ filter: search.value, start: 0 }), 200) });
  return {
    search, element: [table.element, pager.element], live: () => asked,
    update(snapshot) {
      const rows = rowsOf(snapshot);
      if (!rows) return;
      table.update(rows);
      pager.update(asked.start, rows.length, snapshot.total);
    },
  };
}

export function topics(at) {
  return at.path[1] === undefined ? list(at) : one(at, at.path[1]);
}

function list(at) {
  const rows = listed({
    at, view: "topics", path: "topics", label: "topics", key: (row) => row.topic, rowsOf: (s) => s.topics,
    none: "No topic. One is made by whoever publishes to it, or here.",
    columns: [
      { title: "Topic", kind: "name", sort: "name", same: (row) => row.topic, cell: (row) => link(row.topic) },
      { title: "Partitions", kind: "num", hide: true, cell: (row) => count(row.partitions) },
      { title: "In /s", kind: "num", sort: "in", cell: (row) => rate(row.inRate) },
      { title: "Out /s", kind: "num", sort: "out", cell: (row) => rate(row.outRate) },
      { title: "Offsets", kind: "num", sort: "messages", hide: true, cell: (row) => brief(row.messages) },
      { title: "Size", kind: "num", sort: "size", hide: true, cell: (row) => bytes(row.sizeBytes) },
      { title: "To come", kind: "num", sort: "pending", cell: (row) => brief(row.pending) },
      { title: "Groups", kind: "num", hide: true, cell: (row) => count(row.groups) },
      { title: "Lag", kind: "num", sort: "lag", cell: (row) => brief(row.lag) },
      { title: "", reader: "State", hide: true, same: (row) => `${row.problems}/${row.partitions - row.led}`, cell: (row) => (row.problems ? h("span", { class: "tag bad" }, "damaged") : row.led < row.partitions && who().isClustered && !row.topic.startsWith("__") ? h("span", { class: "tag warn" }, `${count(row.partitions - row.led)} without leader`) : h("span")) },
    ],
  });
  const make = h("button", { type: "button", class: "main", onclick: create }, "New topic");
  return {
    element: [h("div", { class: "head" }, h("h1", {}, "Topics"), h("span", { class: "grow" }), rows.search, may("publish", { topic: "any" }) || may("admin") || may("publish") ? make : null), h("section", { class: "panel" }, rows.element)],
    live: rows.live, update: rows.update,
  };
}

const number = (text) => (text === "" ? undefined : Number(text));

function create() {
  act({
    title: "New topic", label: "Make it",
    fields: [{ name: "topic", title: "Name", required: true }, { name: "partitions", title: "Partitions", kind: "number", min: "1", value: "1" }, { name: "retention", title: "Keep messages for (hours; empty: as configured, 0: for ever)", kind: "number", min: "0" }, { name: "compacted", title: "Keep only the latest message of each key", kind: "check" }],
    asked: (v) => ({ method: "POST", path: "/topics", body: { topic: v.topic, partitions: Number(v.partitions || 1), retentionMs: v.retention === "" ? undefined : Number(v.retention) * 3600000, isCompacted: v.compacted || undefined }, cli: shell("waterclock", "topics", "create", v.topic, "--partitions", v.partitions, v.retention === "" ? "" : "--retention", v.retention === "" ? "" : `${v.retention}h`, v.compacted ? "--compacted" : "") }),
    done: (made) => { location.hash = `#/topics/${part(made.topic)}`; return `${made.topic} is there`; },
  });
}

export function publish(topic, { value = "", key = "", headers = "", title } = {}) {
  act({
    title: title ?? `Publish to ${topic}`, label: "Publish",
    fields: [{ name: "value", title: "Message", kind: "area", value }, { name: "key", title: "Key", value: key }, { name: "headers", title: "Headers, name=value, one a line", kind: "area", isLow: true, value: headers }, { name: "at", title: "When: empty is now; 90s, 18:00, tomorrow 9:00, 2026-12-24T18:00:00Z", hint: "now" }],
    asked: (v) => {
      const given = v.headers.split("\n").filter(Boolean).map((line) => {
        if (line.indexOf("=") < 1) throw new Error(`Header ${line}: write name=value`);
        return [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)];
      });
      const body = { value: v.value, key: v.key || undefined, headers: given.length ? Object.fromEntries(given) : undefined };
      if (v.at.trim()) body[/^\+?\s*[\d.]+\s*[a-z]/i.test(v.at.trim()) ? "delay" : "at"] = v.at.trim();
      return { method: "POST", path: `/topics/${part(topic)}/messages`, body, cli: command("publish", [topic, v.value], ...(v.key ? ["--key", v.key] : []), ...given.flatMap(([name, text]) => ["-H", `${name}=${text}`]), ...(v.at.trim() ? ["--at", v.at.trim()] : [])) };
    },
    done: (made) => `Stored at ${made.partition}/${made.offset}`,
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

export function whole(topic, m) {
  const tools = [h("button", { type: "button", onclick: () => box.close() }, "Close")];
  if (may("publish", { topic }) && m.value !== undefined) tools.unshift(h("button", { type: "button", onclick: () => { box.close(); publish(topic, { value: m.value, key: m.key ?? "", headers: Object.entries(m.headers ?? {}).map(([n, t]) => `${n}=${t}`).join("\n"), title: `Publish again to ${topic}` }); } }, "Publish again…"));
  const box = dialog(`${topic} ${m.partition}/${m.offset}`,
    facts([["Key", keyOf(m)], ["Id", m.messageId ?? m.messageIdBase64], ["Stored", m.appendedMs ? time(m.appendedMs) : ""], ["Due", m.dueMs ? time(m.dueMs) : ""], ...headersOf(m).map(([name, text]) => [`header ${name}`, text])]),
    h("h3", {}, "Value"), body(m), h("div", { class: "buttons" }, ...tools));
}

function one(at, topic) {
  const chart = plot("Messages a second", [{ title: "in", show: rate }, { title: "out", show: rate }]);
  const partitions = new Table("partitions", [
    { title: "Partition", kind: "num", cell: (row) => String(row.partition) },
    { title: "Start", kind: "num", cell: (row) => count(row.startOffset) },
    { title: "End", kind: "num", cell: (row) => count(row.endOffset) },
    { title: "Size", kind: "num", cell: (row) => bytes(row.sizeBytes) },
    { title: "To come", kind: "num", cell: (row) => count(row.scheduled) },
    ...(who().isClustered ? [{ title: "Leader", hide: true, cell: (row) => row.leader ?? "" }, { title: "Replicas", hide: true, cell: (row) => row.replicas ?? "" }] : []),
    { title: "State", same: (row) => row.problem, cell: (row) => (row.problem ? h("span", { class: "bad" }, row.problem) : h("span", { class: "dim" }, "well")) },
  ], { key: (row) => row.partition });
  const settings = h("div");
  let info = null;

  const load = async () => {
    info = await get(`/topics/${part(topic)}`);
    const places = may("read") ? (await get("/cluster/replication").catch(() => ({ partitions: [] }))).partitions.filter((each) => each.topic === topic) : [];
    partitions.update(info.partitions.map((each) => {
      const place = places.find((one) => one.partition === each.partition);
      return { ...each, leader: place?.leader, replicas: place?.replicas.map((one) => `${one.name}${one.lag > 0 ? ` −${one.lag}` : ""}`).join(", ") };
    }));
    const s = info.settings;
    settings.replaceChildren(facts([
      ["Retention", s.retentionMs === undefined ? "as configured" : s.retentionMs === 0 ? "for ever" : span(s.retentionMs)],
      ["Of each partition", s.retentionBytes === undefined ? "as configured" : s.retentionBytes === 0 ? "no bound" : bytes(s.retentionBytes)],
      ["Compacted", s.isCompacted ? "yes, by key" : "no"],
      ["Retries", s.retriesMax === undefined ? "as configured" : String(s.retriesMax)],
      ["Ack timeout", s.ackTimeoutMs === undefined ? "as configured" : span(s.ackTimeoutMs)],
      ["Replicas", s.replicationFactor === undefined ? "" : String(s.replicationFactor)],
    ]));
  };
  const seen = browser(topic, () => info);
  const draw = () => get(query("/history", { topic })).then((found) => chart.set(columns(found, ["in", "out"]))).catch(() => {});
  const refresh = setInterval(() => { load().catch(() => {}); draw(); }, 5000);
  load().then(() => seen.load()).catch((error) => settings.replaceChildren(h("p", { class: "notice bad" }, error.message)));
  draw();

  const settle = () => act({
    title: `Settings of ${topic}`, label: "Change",
    fields: [{ name: "partitions", title: "Partitions: more, never fewer", kind: "number", min: "1", value: String(info?.partitions.length ?? 1) }, { name: "retention", title: "Keep messages for (hours; 0: for ever)", kind: "number", min: "0", value: info?.settings.retentionMs === undefined ? "" : String(info.settings.retentionMs / 3600000) }, { name: "retries", title: "Retries", kind: "number", min: "1", value: info?.settings.retriesMax === undefined ? "" : String(info.settings.retriesMax) }],
    asked: (v) => ({ method: "PATCH", path: `/topics/${part(topic)}`, body: { partitions: number(v.partitions), retentionMs: v.retention === "" ? undefined : Number(v.retention) * 3600000, retriesMax: number(v.retries) }, cli: shell("waterclock", "topics", "update", topic, "--partitions", v.partitions, ...(v.retention === "" ? [] : ["--retention", `${v.retention}h`]), ...(v.retries === "" ? [] : ["--retries", v.retries])) }),
    done: () => { load(); return "Changed"; },
  });
  const remove = () => act({
    title: `Delete ${topic}`, label: "Delete for good", isDanger: true, note: "All its messages go, those to come included. Type its name to go on.",
    fields: [{ name: "name", title: "Name", required: true }],
    check: (v) => (v.name === topic ? "" : "That is not its name."),
    asked: () => ({ method: "DELETE", path: `/topics/${part(topic)}`, cli: shell("waterclock", "topics", "delete", topic) }),
    done: () => { location.hash = "#/topics"; return `${topic} is gone`; },
  });
  const own = topic.startsWith("__");
  return {
    title: topic,
    element: [
      h("div", { class: "head" }, h("div", {}, h("div", { class: "crumb" }, h("a", { href: "#/topics" }, "Topics")), h("h1", {}, topic)), h("span", { class: "grow" }),
        h("a", { class: "button", href: query("#/schedule", { topic }) }, "What is to come"),
        h("a", { class: "button", href: query("#/groups", { filter: `${topic}/` }) }, "Groups"),
        may("publish", { topic }) && !own ? h("button", { type: "button", class: "main", onclick: () => publish(topic) }, "Publish…") : null,
        may("admin", { topic }) && !own ? [h("button", { type: "button", onclick: settle }, "Settings…"), h("button", { type: "button", class: "danger", onclick: remove }, "Delete…")] : null),
      h("div", { class: "grid" }, panel("Messages a second", chart.element), panel("Settings", settings)),
      panel("Partitions", partitions.element), seen.element,
    ],
    close() { clearInterval(refresh); chart.close(); seen.close(); },
    back: load,
  };
}

// The messages of a topic: the newest, from an offset, a time, of a key; or as they come.
function browser(topic, info) {
  const table = new Table("messages", [
    { title: "Stored", cell: (m) => time(m.appendedMs), same: (m) => String(m.appendedMs) },
    { title: "Position", kind: "num", same: () => "", cell: (m) => h("button", { type: "button", class: "plain mono", onclick: () => whole(topic, m), "aria-label": `Show message ${m.partition}/${m.offset}` }, `${m.partition}/${m.offset}`) },
    { title: "Key", kind: "name", cell: (m) => cut(keyOf(m), 60) },
    { title: "Value", kind: "body", cell: (m) => cut(textOf(m) || "∅") },
  ], { key: (m) => `${m.partition}/${m.offset}`, none: "No message here." });
  const partition = h("select", { "aria-label": "Partition" }, h("option", { value: "" }, "all partitions"));
  const from = h("input", { placeholder: "offset", inputmode: "numeric", size: "9", "aria-label": "From offset" });
  const since = h("input", { type: "datetime-local", step: "1", "aria-label": "From time" });
  const key = h("input", { placeholder: "key", size: "12", "aria-label": "Only of this key" });
  const said = h("span", { class: "dim", "aria-live": "polite" });
  let stop = new AbortController();
  let shown = [];
  let isTail = false;

  const starts = async (mode) => {
    const known = info() ?? (await get(`/topics/${part(topic)}`));
    const chosen = known.partitions.filter((each) => each.endOffset >= 0 && (partition.value === "" || String(each.partition) === partition.value));
    if (mode === "offset") return chosen.map((each) => [each.partition, Math.max(Number(from.value) || 0, each.startOffset)]);
    if (mode === "time") {
      const found = (await get(query(`/topics/${part(topic)}/offsets`, { timeMs: new Date(since.value).getTime() }))).positions;
      return chosen.map((each) => [each.partition, found.find((one) => one.partition === each.partition)?.offset ?? each.startOffset]);
    }
    const most = mode === "tail" ? 0 : key.value ? 5000 : 50;
    return chosen.map((each) => [each.partition, Math.max(each.startOffset, each.endOffset - most)]);
  };
  const order = (a, b) => b.appendedMs - a.appendedMs || b.offset - a.offset;
  const isMeant = (m) => !key.value || keyOf(m) === key.value;

  const load = async () => {
    if (isTail) return;
    stop.abort();
    const mine = (stop = new AbortController());
    const mode = from.value ? "offset" : since.value ? "time" : "newest";
    if (partition.options.length === 1) info()?.partitions.forEach((each) => partition.append(h("option", { value: String(each.partition) }, `partition ${each.partition}`)));
    try {
      const found = await Promise.all((await starts(mode)).map(([number, offset]) => messages(topic, number, offset, key.value ? 5000 : 50, mine.signal)));
      shown = found.flat().filter(isMeant).sort(order);
      if (mode !== "newest") shown.reverse();
      shown = shown.slice(0, 200);
      table.update(shown);
      said.textContent = key.value ? `${shown.length} of this key among 5,000 of each partition` : "";
    } catch (error) { if (error.name !== "AbortError") said.textContent = error.message; }
  };

  const follow = async () => {
    stop.abort();
    const mine = (stop = new AbortController());
    const ends = new Map(await starts("tail"));
    said.textContent = "waiting for messages";
    while (!mine.signal.aborted) {
      try {
        const beyond = [...ends].map((each) => each.join(":")).join(",");
        const found = (await get(query(`/topics/${part(topic)}/ends`, { beyond, waitMs: 20000 }), { signal: mine.signal })).partitions;
        for (const each of found.filter((one) => ends.has(one.partition) && one.endOffset > ends.get(one.partition))) {
          const first = Math.max(ends.get(each.partition), each.endOffset - 200);
          shown = [...(await messages(topic, each.partition, first, each.endOffset - first, mine.signal)).filter((m) => m.offset < each.endOffset && isMeant(m)), ...shown];
          ends.set(each.partition, each.endOffset);
        }
        shown = shown.sort(order).slice(0, 200);
        table.update(shown);
        said.textContent = `following, ${shown.length} shown`;
      } catch (error) {
        if (mine.signal.aborted) return;
        said.textContent = error.message;
      }
      await new Promise((done) => setTimeout(done, 300));
    }
  };
  const mode = choice("What to show", [["look", "Browse"], ["tail", "Follow live"]], "look", (value) => { isTail = value === "tail"; if (isTail) { shown = []; table.update([]); follow(); } else load(); });
  [partition, from, since].forEach((each) => each.addEventListener("change", load));
  key.addEventListener("change", load);
  return { element: panel("Messages", [said, partition, from, since, key, mode], table.element), load, close: () => stop.abort() };
}
