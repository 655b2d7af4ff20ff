// What the node is busy with: rates, lag, lateness, disk, what is wrong, over an hour or a day.
import { get, query as asked, remember } from "./api.js";
import { choice, every, h, panel, put } from "./dom.js";
import { Table } from "./table.js";
import { brief, bytes, count, rate, span, time } from "./format.js";
import { columns, plot } from "./plot.js";
import { may, who } from "./rights.js";

const PLOTS = [
  ["Messages a second", [["in", "in", rate], ["out", "out", rate], ["acked", "acked", rate]]],
  ["Timers fired a second", [["fired", "fired", rate]]],
  ["Lateness of what was fired", [["latenessP99Ms", "99 of 100 within", span], ["latenessMaxMs", "all within", span]]],
  ["Backlog", [["lag", "lag of groups", brief], ["unacked", "delivered, not acked", brief]]],
  ["Failures a second", [["redelivered", "delivered again", rate], ["deadLettered", "dead-lettered", rate]]],
  ["Scheduled", [["pending", "to come", brief]]],
  ["Streams, messages a second", [["streamIn", "sent", rate], ["streamOut", "received", rate]]],
  ["Processor", [["cpu", "of one core", (value) => `${(value * 100).toFixed(0)} %`]]],
  ["Disk and memory", [["logBytes", "logs", bytes], ["memoryBytes", "memory", bytes]]],
  ["Disk free", [["diskFreeBytes", "free", bytes]]],
];
const NOW = { in: "inRate", out: "outRate", acked: "ackedRate", fired: "firedRate", deadLettered: "deadLetteredRate", redelivered: "redeliveredRate", latenessP99Ms: "latenessP99Ms", lag: "lag", unacked: "unacked", pending: "pending", streamIn: "streamInRate", streamOut: "streamOutRate", logBytes: "sizeBytes", diskFreeBytes: "diskFreeBytes" };
const LEVELS = new Set(["lag", "unacked", "pending", "logBytes", "diskFreeBytes"]);
const ALARMS_MAX = 20;

const TILES = [
  ["In", (n) => [rate(n.inRate), "/s"]],
  ["Out", (n) => [rate(n.outRate), "/s"]],
  ["Fired", (n) => [rate(n.firedRate), "/s"]],
  ["To come", (n) => [brief(n.pending), ""]],
  ["Late, 99 of 100", (n) => [n.latenessP99Ms === null ? "–" : `≤ ${span(n.latenessP99Ms)}`, ""], (n) => n.latenessP99Ms > 1000 && "warn"],
  ["Lag", (n) => [brief(n.lag), ""]],
  ["Unacked", (n) => [brief(n.unacked), ""]],
  ["Topics", (n) => [count(n.topics), ""]],
  ["Groups", (n) => [count(n.groups), ""]],
  ["Streams", (n) => [count(n.streams), n.waiting ? ` ${count(n.waiting)} wait` : ""]],
  ["Disk free", (n) => [bytes(n.diskFreeBytes), n.diskBytes ? ` of ${bytes(n.diskBytes)}` : ""], (n) => n.diskBytes && n.diskFreeBytes / n.diskBytes < 0.05 && "bad"],
  ["Nodes", (n) => [n.members === null ? "1" : count(n.members), ""]],
];

export function overview({ query }) {
  const tiles = TILES.map(([title]) => { const value = h("span", {}, "–"), unit = h("small"); return { value, unit, element: h("div", { class: "tile" }, h("dt", {}, title), h("dd", {}, value, unit)) }; });
  const problems = h("div", { "aria-live": "polite" });
  const plots = PLOTS.map(([title, series]) => ({ names: series.map(([name]) => name), chart: plot(title, series.map(([, shown, show]) => ({ title: shown, show }))), title }));
  const limited = h("p", { class: "notice hidden" }, "You may not see the node as a whole: the lists show what is yours.");
  let range = query.get("range") === "day" ? "day" : "hour", node = query.get("node") ?? "";
  const missing = h("p", { class: "notice warn hidden", role: "status" });
  const nodes = new Table("nodes", [
    { title: "Node", kind: "name", cell: (row) => row.name },
    { title: "State", same: (row) => `${row.isHeard}/${row.isReady}`, cell: (row) => h("span", { class: `tag ${row.isReady ? "good" : "bad"}` }, !row.isHeard ? "does not answer" : row.isReady ? "ready" : "not ready") },
    { title: "In /s", kind: "num", cell: (row) => rate(row.inRate) },
    { title: "Out /s", kind: "num", cell: (row) => rate(row.outRate) },
    { title: "Leads", kind: "num", cell: (row) => count(row.leads) },
    { title: "To come", kind: "num", hide: true, cell: (row) => brief(row.pending) },
    { title: "Disk free", kind: "num", hide: true, cell: (row) => (row.diskBytes ? `${bytes(row.diskFreeBytes)} of ${bytes(row.diskBytes)}` : "–") },
    { title: "", reader: "What is wrong", hide: true, cell: (row) => row.problems.map((one) => one.detail).join("; ") },
  ], { key: (row) => row.name });
  const nodesPanel = panel("Nodes", nodes.element);
  nodesPanel.classList.add("hidden");
  const chosen = h("select", { "aria-label": "Plots of", class: "hidden", onchange: () => { node = chosen.value; keep(); load(); } });
  const keep = () => remember("", { range: range === "day" ? range : "", node }, true);
  let history = null, recent = [], saidProblems = "";

  const load = async () => {
    const path = asked("/history", { range, node }), found = await get(path);
    if (path !== asked("/history", { range, node })) return; // the reader wants to see something else by now
    history = found;
    const away = history.unreachable ?? [];
    put(missing, `The plots lack what ${away.join(", ")} did: no answer.`);
    missing.classList.toggle("hidden", !away.length);
    recent = [];
    draw();
  };
  const draw = () => plots.forEach(({ names, chart }) => chart.set(columns(history, names)));

  // Between two looks at the history, what is told every second goes on with it.
  const extend = (now) => {
    // As in the history: of all nodes together, where the tile has the disk that fills up first.
    const free = now.node.nodes.map((row) => row.diskFreeBytes ?? 0).reduce((a, b) => a + b, 0);
    recent.push(now.node.nodes.length ? { ...now.node, diskFreeBytes: free } : now.node);
    if (!history || now.nowMs < history.endMs + history.stepMs) return;
    for (const [name, values] of Object.entries(history.series)) {
      const field = NOW[name];
      const known = recent.map((each) => each[field]).filter((each) => each !== null && each !== undefined);
      const value = !known.length ? null : LEVELS.has(name) ? known.at(-1) : name.startsWith("late") ? Math.max(...known) : known.reduce((a, b) => a + b) / known.length;
      values.push(field ? value : values.at(-1));
      values.shift();
    }
    history.endMs += history.stepMs;
    recent = [];
    draw();
  };

  // What is wrong with this node and with all of them together, then what others say of themselves.
  const tell = (node) => {
    const others = node.nodes.filter((row) => row.name !== who().node);
    const all = [...node.problems, ...others.flatMap((row) => row.problems.map((one) => ({ ...one, node: row.name })))];
    const said = JSON.stringify(all);
    if (said === saidProblems) return;
    saidProblems = said;
    const left = all.length - ALARMS_MAX;
    problems.replaceChildren(...all.slice(0, ALARMS_MAX).map((one) => h("div", { class: one.isBlocking ? "notice bad" : "notice warn" }, h("b", {}, one.node ? `${one.node}: ${one.name}` : one.name), ` since `, time(one.sinceMs), `: ${one.detail}. ${one.advice}`)),
      left > 0 ? h("div", { class: "notice warn" }, `${count(left)} more: /health/ready of each node has all of its own.`) : "");
  };

  // Those that share topics, if there are several.
  const list = (rows) => {
    nodesPanel.classList.toggle("hidden", rows.length < 2);
    chosen.classList.toggle("hidden", rows.length < 2 && !node);
    nodes.update([...rows].sort((a, b) => (a.name < b.name ? -1 : 1)));
    const names = [...new Set([...rows.map((row) => row.name), node])].filter(Boolean).sort();
    if (chosen.dataset.names === names.join("\n")) return;
    chosen.dataset.names = names.join("\n");
    chosen.replaceChildren(h("option", { value: "" }, "all nodes"), ...names.map((name) => h("option", { value: name, selected: name === node }, name)));
  };

  const mayRead = may("read"); // the node as a whole
  const refresh = mayRead ? every(300000, () => load().catch(() => {})) : () => {};
  if (mayRead) load().catch(() => {});
  else limited.classList.remove("hidden");
  const element = mayRead ? [
    h("div", { class: "head" }, h("h1", {}, "Overview"), h("span", { class: "grow" }), chosen,
      choice("How far back", [["hour", "Hour"], ["day", "Day"]], range, (value) => { range = value; keep(); load(); })),
    limited, problems, missing,
    h("dl", { class: "tiles" }, tiles.map((tile) => tile.element)),
    nodesPanel,
    h("div", { class: "grid" }, plots.map(({ title, chart }) => panel(title, chart.element))),
  ] : [h("div", { class: "head" }, h("h1", {}, "Overview")), limited];
  return {
    element,
    update(snapshot) {
      if (!snapshot.node || !mayRead) return undefined;
      TILES.forEach(([, show, mood], at) => {
        const [text, unit] = show(snapshot.node);
        put(tiles[at].value, text);
        put(tiles[at].unit, unit);
        tiles[at].element.className = `tile ${mood?.(snapshot.node) || ""}`;
      });
      tell(snapshot.node);
      list(snapshot.node.nodes);
      if (range === "hour" && !node) extend(snapshot);
      return undefined;
    },
    back: () => mayRead && load().catch(() => {}),
    close() {
      refresh();
      plots.forEach(({ chart }) => chart.close());
    },
  };
}
