// Topics: the list, and one of them with its partitions, its messages, and what can be done with it.
import { get, part, query, remember } from "./api.js";
import { act, waterclock } from "./action.js";
import { every, facts, h, later, panel, unreadable } from "./dom.js";
import { brief, bytes, count, rate, span } from "./format.js";
import { browser, publish } from "./messages.js";
import { columns, plot } from "./plot.js";
import { may, mayAny, mayPublish, who } from "./rights.js";
import { Pager, Table } from "./table.js";

const LIMIT = 50;
export const link = (topic) => h("a", { href: `#/topics/${part(topic)}` }, topic);

// A list that the node filters, sorts and pages; what is asked of it stands in the address.
export function listed({ at, view, columns: shown, key, none, label, path, rowsOf }) {
  const asked = { view, filter: at.query.get("filter") ?? "", sort: at.query.get("sort") ?? "name", descending: at.query.get("descending") === "true", start: Number(at.query.get("start") ?? 0), limit: LIMIT };
  const turn = (changes, isStep = true) => {
    Object.assign(asked, changes);
    remember(path, { filter: asked.filter, sort: asked.sort === "name" ? "" : asked.sort, descending: asked.descending ? "true" : "", start: asked.start || "" }, isStep);
    at.follow();
  };
  let isTyping = false; // a name that is typed is one step, not one for each letter
  const table = new Table(label, shown, { key, none, sort: { by: asked.sort, descending: asked.descending }, onsort: ({ by, descending }) => turn({ sort: by, descending, start: 0 }) });
  const pager = new Pager(LIMIT, (start) => turn({ start }));
  const search = h("input", { type: "search", placeholder: "Filter by name", "aria-label": `Filter ${label}`, value: asked.filter, onfocus: () => { isTyping = false; }, oninput: later(() => { turn({ filter: search.value, start: 0 }, !isTyping); isTyping = true; }, 200) });
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
    element: [h("div", { class: "head" }, h("h1", {}, "Topics"), h("span", { class: "grow" }), rows.search, mayAny("publish", "topic") ? make : null), h("section", { class: "panel" }, rows.element)],
    live: rows.live, update: rows.update,
  };
}

const HOUR = 3600000, MIB = 1048576;
const lasting = (ms) => (ms % 1000 ? `${ms}ms` : ms % HOUR || !ms ? `${ms / 1000}s` : `${ms / HOUR}h`);
const sized = (size) => (size % MIB || !size ? String(size) : `${size / MIB}MiB`);
// What can be said about a topic: `of` in the answers of nodes, in the form as a number of `unit`, and as an option of the command line.
const NUMBERS = [
  { name: "partitions", of: "partitions", title: "Partitions: more, never fewer", option: "--partitions", min: "1" },
  { name: "retention", of: "retentionMs", title: "Keep messages for (hours; 0: for ever)", unit: HOUR, option: "--retention", words: lasting },
  { name: "size", of: "retentionBytes", title: "Keep so much of each partition (MiB; 0: all)", unit: MIB, option: "--retention-bytes", words: sized },
  { name: "retries", of: "retriesMax", title: "Retries", option: "--retries", min: "1" },
  { name: "timeout", of: "ackTimeoutMs", title: "Ack timeout (seconds)", unit: 1000, option: "--ack-timeout", words: lasting },
  { name: "replicas", of: "replicationFactor", title: "Replicas of each partition", option: "--replicas", min: "1", isShared: true },
];
const CHECKS = [
  { name: "compacted", of: "isCompacted", title: "Keep only the latest message of each key", options: ["--compacted", "--not-compacted"] },
  { name: "waits", of: "retentionWaitForGroups", title: "Keep what some group has yet to read for longer", options: ["--wait-for-groups", "--no-wait-for-groups"] },
];
const NEW = { settings: {}, effective: {} };

// Fields of a form: what was said stands in them, what is as configured behind them.
function fieldsOf({ settings, effective = {} }) {
  const shown = (value, { unit = 1 }) => (value === undefined ? "" : String(value / unit));
  return [
    ...NUMBERS.filter((one) => !one.isShared || who().isClustered).map((one) => ({ name: one.name, title: one.title, kind: "number", min: one.min ?? "0", step: one.unit ? "any" : "1", value: shown(settings[one.of], one), hint: settings[one.of] !== undefined ? "as it is" : effective[one.of] === undefined ? "as configured" : `${shown(effective[one.of], one)}, as configured` })),
    ...CHECKS.map((one) => ({ name: one.name, title: one.title, kind: "check", value: effective[one.of] ?? settings[one.of] ?? false })),
  ];
}

// What the values of such a form change: the body of a request, and words of a command line.
function changes(values, { settings, effective = {} }) {
  const body = {}, words = [];
  for (const { name, of, unit = 1, option, words: text = String } of NUMBERS) {
    const value = (values[name] ?? "") === "" ? undefined : Math.round(Number(values[name]) * unit);
    if (value === undefined || value === settings[of]) continue;
    body[of] = value;
    words.push(option, text(value));
  }
  for (const { name, of, options } of CHECKS) {
    if (values[name] === (effective[of] ?? settings[of] ?? false)) continue;
    body[of] = values[name];
    words.push(options[values[name] ? 0 : 1]);
  }
  return { body, words };
}

function create() {
  const [partitions, ...others] = fieldsOf(NEW);
  act({
    title: "New topic", label: "Make it",
    fields: [{ name: "topic", title: "Name", required: true }, { ...partitions, title: "Partitions", value: "1" }, ...others],
    asked: (v) => { const { body, words } = changes(v, NEW); return { method: "POST", path: "/topics", body: { topic: v.topic, ...body }, cli: waterclock("topics", "create", v.topic, ...words) }; },
    done: (made) => { location.hash = `#/topics/${part(made.topic)}`; return `${made.topic} is there`; },
  });
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
    const places = may("read", { topic }) ? (await get(query("/cluster/replication", { topic })).catch(() => ({ partitions: [] }))).partitions : [];
    partitions.update(info.partitions.map((each) => {
      const place = places.find((one) => one.partition === each.partition);
      return { ...each, leader: place?.leader, replicas: place?.replicas.map((one) => `${one.name}${one.lag > 0 ? ` −${one.lag}` : ""}`).join(", ") };
    }));
    const own = info.settings, holds = info.effective ?? own;
    const fact = (name, show) => [show(holds[name]), own[name] === undefined ? h("span", { class: "dim" }, " as configured") : ""];
    settings.replaceChildren(facts([
      ["Retention", fact("retentionMs", (ms) => (ms === 0 ? "for ever" : span(ms)))],
      ["Of each partition", fact("retentionBytes", (size) => (size === 0 ? "no bound" : bytes(size)))],
      ["Waits for groups", fact("retentionWaitForGroups", (waits) => (waits ? "yes" : "no"))],
      ["Compacted", own.isCompacted ? "yes, by key" : "no"],
      ["Retries", fact("retriesMax", String)],
      ["Ack timeout", fact("ackTimeoutMs", span)],
      ["Replicas", who().isClustered || own.replicationFactor ? fact("replicationFactor", String) : ""],
    ]));
  };
  const seen = browser(topic, () => info, at);
  const draw = () => get(query("/history", { topic })).then((found) => chart.set(columns(found, ["in", "out"]))).catch(() => {});
  const mayRead = may("read", { topic }); // what would be refused is not asked for, again and again
  const refresh = mayRead ? every(5000, () => Promise.allSettled([load(), draw()])) : () => {};
  let isThere = false; // once the node has told of it: it may be away when the page is opened
  const whole = async () => {
    draw();
    try {
      await load();
      if (isThere) await seen.again();
      else { isThere = true; await seen.load(); }
    } catch (error) { if (!isThere) settings.replaceChildren(h("p", { class: "notice bad" }, error.message)); }
  };
  if (mayRead) whole();

  const settle = () => {
    const now = info ?? NEW;
    act({
      title: `Settings of ${topic}`, label: "Change", fields: fieldsOf(now),
      check: (v) => (changes(v, now).words.length ? "" : "Nothing is changed yet."),
      asked: (v) => { const { body, words } = changes(v, now); return { method: "PATCH", path: `/topics/${part(topic)}`, body, cli: waterclock("topics", "update", topic, ...words) }; },
      done: () => { load(); return "Changed"; },
    });
  };
  const remove = () => act({
    title: `Delete ${topic}`, label: "Delete for good", isDanger: true, note: "All its messages go, those to come included. Type its name to go on.",
    fields: [{ name: "name", title: "Name", required: true }],
    check: (v) => (v.name === topic ? "" : "That is not its name."),
    asked: () => ({ method: "DELETE", path: `/topics/${part(topic)}`, cli: waterclock("topics", "delete", topic) }),
    done: () => { location.hash = "#/topics"; return `${topic} is gone`; },
  });
  return {
    title: topic,
    element: [
      h("div", { class: "head" }, h("div", {}, h("div", { class: "crumb" }, h("a", { href: "#/topics" }, "Topics")), h("h1", {}, topic)), h("span", { class: "grow" }),
        mayRead ? [h("a", { class: "button", href: query("#/schedule", { topic }) }, "What is to come"), h("a", { class: "button", href: query("#/groups", { filter: `${topic}/` }) }, "Groups")] : null,
        mayPublish(topic) ? h("button", { type: "button", class: "main", onclick: () => publish(topic, { then: () => mayRead && load().then(seen.again) }) }, "Publish…") : null,
        may("admin", { topic }) && !topic.startsWith("__") ? [h("button", { type: "button", onclick: settle }, "Settings…"), h("button", { type: "button", class: "danger", onclick: remove }, "Delete…")] : null),
      mayRead ? [h("div", { class: "grid" }, panel("Messages a second", chart.element), panel("Settings", settings)), panel("Partitions", partitions.element), seen.element] : unreadable("topic"),
    ].flat(),
    close() { refresh(); chart.close(); seen.close(); },
    back: () => mayRead && whole(), rest: () => seen.rest(), seen: () => mayRead && seen.seen(),
  };
}
