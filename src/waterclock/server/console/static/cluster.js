// The cluster: who is there, who owns what, who leads, who lags, what is being moved.
import { get } from "./api.js";
import { act, waterclock } from "./action.js";
import { every, h, panel, toast } from "./dom.js";
import { count, time } from "./format.js";
import { may, who } from "./rights.js";
import { Table, turned } from "./table.js";
import { link } from "./topics.js";

const MOOD = { alive: "good", suspect: "warn", leaving: "warn", left: "", failed: "bad", gone: "bad" };
const LOST = ["failed", "left", "gone"];

// How far what is wanted on a node has come, as the leader of the partition knows it.
function progress(move, partition) {
  if (!partition?.leader) return "nobody leads it";
  if (move.isLeaderOnly) return partition.leader === move.target ? "it leads" : `${partition.leader} leads`;
  const there = partition.replicas.find((one) => one.name === move.target);
  if (!there) return "has not begun";
  if (there.isVoter) return "votes";
  const share = partition.committedEnd > 0 && there.flushedEnd >= 0 ? ` (${Math.floor((Math.min(there.flushedEnd, partition.committedEnd) / partition.committedEnd) * 100)} %)` : "";
  return `learns: ${there.flushedEnd < 0 ? "?" : count(there.flushedEnd)} of ${count(partition.committedEnd)}${share}${there.isLinked ? "" : ", away"}`;
}

export function cluster(at) {
  const isAdmin = may("admin") && who().isClustered;
  const lacking = (row) => { const voters = row.replicas.filter((one) => one.isVoter).length; return voters < row.factor ? ` (${voters} of ${row.factor})` : ""; };
  let shares = new Map(), drains = new Map(), leads = new Map(), heirs = [];
  const members = new Table("members", [
    { title: "Node", kind: "name", cell: (row) => row.name + (row.isSelf ? " (this one)" : "") },
    { title: "State", same: (row) => row.state, cell: (row) => h("span", { class: `tag ${MOOD[row.state] ?? ""}` }, row.state) },
    { title: "Console", hide: true, same: (row) => row.http, cell: (row) => (row.http ? h("a", { href: `${row.http}/` }, row.http) : h("span")) },
    { title: "Zone", hide: true, cell: (row) => row.zone || "" },
    { title: "Of the streams", kind: "num", cell: (row) => (shares.has(row.name) ? `${(shares.get(row.name).share * 100).toFixed(1)} %` : "–") },
    { title: "Leads", kind: "num", hide: true, cell: (row) => (leads.size ? count(leads.get(row.name) ?? 0) : "–") },
    { title: "Streams", kind: "num", hide: true, cell: (row) => (shares.has(row.name) ? count(shares.get(row.name).streams) : "–") },
    { title: "Drained", hide: true, cell: (row) => { const drain = drains.get(row.name); return drain ? `${drain.target ? `replaced by ${drain.target}: ` : ""}${count(drain.leaders)} leaders, ${count(drain.replicas)} replicas left${drain.stuck ? `, ${count(drain.stuck)} have nowhere to go` : ""}` : ""; } },
    { title: "", kind: "tools", same: (row) => `${drains.has(row.name)} ${row.state}`, cell: (row) => (isAdmin && row.level ? [
      LOST.includes(row.state) ? h("button", { type: "button", class: "small", onclick: () => replace(row.name) }, "Replace…") : null, " ",
      h("button", { type: "button", class: "small", onclick: () => drain(row.name, drains.has(row.name)) }, drains.has(row.name) ? "Use again" : "Drain"),
    ] : h("span")) },
  ], { key: (row) => row.name });
  const partitions = new Table("replicated partitions", [
    { title: "Topic", kind: "name", same: (row) => row.topic, cell: (row) => link(row.topic) },
    { title: "Partition", kind: "num", cell: (row) => String(row.partition) },
    { title: "Leader", cell: (row) => row.leader || "nobody" },
    { title: "Epoch", kind: "num", hide: true, cell: (row) => String(row.epoch) },
    { title: "Committed", kind: "num", hide: true, cell: (row) => count(row.committedEnd) },
    { title: "Replicas, lag", cell: (row) => row.replicas.map((one) => `${one.name}${one.isVoter ? "" : " (learns)"}${one.lag > 0 ? ` −${count(one.lag)}` : ""}${one.isLinked ? "" : " away"}`).join(", ") + lacking(row) },
    { title: "", kind: "tools", same: () => "", cell: (row) => (isAdmin ? h("button", { type: "button", class: "small", onclick: () => move(row) }, "Move") : h("span")) },
  ], { key: (row) => `${row.topic}/${row.partition}`, none: "Topics are not replicated: the node is alone, or has no etcd." });
  const list = turned(at, "cluster", partitions, { text: (row) => `${row.topic}/${row.partition} ${row.leader || "nobody"} ${row.replicas.map((one) => `${one.name}${one.isVoter ? "" : " learns"}${one.isLinked ? "" : " away"}`).join(" ")}`, label: "Filter partitions", hint: "topic, node, nobody, away" });
  const moves = new Table("what is being moved", [
    { title: "Topic", kind: "name", cell: (row) => row.topic }, { title: "Partition", kind: "num", cell: (row) => String(row.partition) },
    { title: "From", cell: (row) => row.source || "any" }, { title: "To", cell: (row) => row.target }, { title: "What", cell: (row) => (row.isLeaderOnly ? "leader" : "replica") }, { title: "How far", cell: (row) => row.progress },
  ], { key: (row) => `${row.topic}/${row.partition}/${row.target}`, none: "Nothing is being moved." });
  const events = new Table("who came and went", [
    { title: "When", kind: "when", same: (row) => String(row.timeMs), cell: (row) => time(row.timeMs) }, { title: "What", cell: (row) => row.kind }, { title: "Node", kind: "name", cell: (row) => row.member }, { title: "", reader: "Detail", cell: (row) => row.detail },
  ], { key: (row) => `${row.timeMs}/${row.kind}/${row.member}`, none: "Nobody came or went." });

  const drain = (node, undo) => act({ title: undo ? `Use ${node} again` : `Drain ${node}`, label: undo ? "Use it" : "Drain", isDanger: !undo, note: undo ? "It may have replicas again." : "Its leaders and then its replicas move elsewhere, so that it can be taken away.", asked: () => ({ method: "POST", path: "/cluster/drain", body: { node, undo: undo || undefined }, cli: waterclock("cluster", "drain", node, undo ? "--undo" : "") }), done: () => { load(); return undo ? "It is used again" : "It is being drained"; } });
  const replace = (node) => act({ title: `Replace ${node}`, label: "Replace", isDanger: true, note: `For a node that will not come back: its replicas are made anew on another at once. ${node} may come back, empty or not, once none of its replicas is left.`, fields: [{ name: "target", title: "By node", kind: "select", required: true, options: heirs.filter((name) => name !== node).map((name) => [name, name]) }], asked: (v) => ({ method: "POST", path: "/cluster/replace", body: { node, target: v.target }, cli: waterclock("cluster", "replace", node, v.target) }), done: (_, v) => { load(); return `It is being replaced by ${v.target}`; } });
  const move = (row) => act({ title: `Move ${row.topic}/${row.partition}`, label: "Move", fields: [{ name: "target", title: "To node", required: true }, { name: "leader", title: "The leader only", kind: "check" }], asked: (v) => ({ method: "POST", path: "/cluster/move", body: { topic: row.topic, partition: row.partition, target: v.target, isLeaderOnly: v.leader || undefined }, cli: waterclock("cluster", "move", row.topic, String(row.partition), "--to", v.target, v.leader ? "--leader" : "") }), done: () => { load(); return "It moves"; } });

  const load = async () => {
    const [found, ring, replication, placement, seen] = await Promise.all(["members", "ring", "replication", "placement", "events"].map((name) => get(`/cluster/${name}`)));
    shares = new Map(ring.nodes.map((each) => [each.name, each]));
    drains = new Map((placement.drains ?? []).map((each) => [each.node, each]));
    // The node's own topics are many rows that nobody looks for first.
    const isOwn = (row) => row.topic.startsWith("__");
    const rows = replication.partitions;
    leads = new Map();
    rows.forEach((row) => leads.set(row.leader, (leads.get(row.leader) ?? 0) + 1));
    // Of who was lost before this node began, only replicas tell.
    const known = new Set(found.members.map((one) => one.name));
    const gone = [...new Set(rows.flatMap((row) => row.replicas.map((one) => one.name)))].filter((name) => !known.has(name));
    heirs = found.members.filter((one) => one.level && one.state === "alive" && !drains.has(one.name)).map((one) => one.name);
    members.update([...found.members, ...gone.sort().map((name) => ({ name, state: "gone", level: 1 }))]);
    list.update([...rows.filter((row) => !isOwn(row)), ...rows.filter(isOwn)]);
    const places = new Map(rows.map((row) => [`${row.topic}/${row.partition}`, row])), asked = placement.moves ?? [];
    const isAsked = new Set(asked.map((one) => `${one.topic}/${one.partition}`));
    // What learns is on its way, too: of a node that is drained, say. Of the node's own some learn for ever.
    const learn = rows.filter((row) => !isOwn(row) && !isAsked.has(`${row.topic}/${row.partition}`)).flatMap((row) => row.replicas.filter((one) => !one.isVoter).map((one) => ({ topic: row.topic, partition: row.partition, source: "", target: one.name, isLeaderOnly: false })));
    moves.update([...asked, ...learn].map((one) => ({ ...one, progress: progress(one, places.get(`${one.topic}/${one.partition}`)) })));
    events.update(seen.events.slice(-50).reverse());
  };
  load().catch((error) => toast(error.message, true));
  const refresh = every(3000, () => load().catch(() => {}));
  return { element: [h("div", { class: "head" }, h("h1", {}, "Cluster")), panel("Members", members.element), panel("Partitions", [list.search], list.element), h("div", { class: "grid" }, panel("Being moved", moves.element), panel("Who came and went", events.element))], close: refresh, back: load };
}
