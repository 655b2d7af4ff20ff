// Groups: who is behind and by how much; one of them, by partition; where it goes on.
import { get, part, query } from "./api.js";
import { act, waterclock } from "./action.js";
import { every, facts, h, panel, unreadable } from "./dom.js";
import { brief, count, rate } from "./format.js";
import { may } from "./rights.js";
import { Table } from "./table.js";
import { link, listed } from "./topics.js";

export function groups(at) {
  return at.path.length < 3 ? list(at) : one(at, at.path[1], at.path[2]);
}

// The partition that is furthest behind, if any is.
function slowest(partitions) {
  const worst = partitions.reduce((one, other) => (other.lag > one.lag ? other : one), { lag: 0 });
  return worst.lag ? `partition ${worst.partition}, ${count(worst.lag)} behind${worst.member ? `, of ${worst.member}` : ", of nobody"}` : "";
}

// What a move does to all partitions together. Not every offset is one of a message, so it is at most so many.
function consequence(group, moves) {
  const sum = (size) => moves.reduce((all, each) => all + Math.max(0, size(each)), 0);
  const again = sum((each) => each.committed - each.to), skipped = sum((each) => each.to - each.committed);
  const many = (number, word) => (number ? `up to ${count(number)} ${number === 1 ? "message" : "messages"} will be ${word}` : "");
  const said = [many(again, "delivered again"), many(skipped, "skipped")].filter(Boolean).join(", and ");
  return `${group}: ${said || "no message will be delivered again, and none skipped"}. Move the group?`;
}

const groupLink = (row) => h("a", { href: `#/groups/${part(row.topic)}/${part(row.group)}` }, row.group);

function list(at) {
  const rows = listed({
    at, view: "groups", path: "groups", label: "groups", key: (row) => `${row.topic}/${row.group}`, rowsOf: (s) => s.groups,
    none: "No group has consumed anything here yet.",
    columns: [
      { title: "Group", kind: "name", sort: "name", same: (row) => row.group, cell: groupLink },
      { title: "Topic", kind: "name", same: (row) => row.topic, cell: (row) => link(row.topic) },
      { title: "Members", kind: "num", sort: "members", same: (row) => `${row.members}/${row.lag > 0}`, cell: (row) => (row.members ? count(row.members) : h("span", { class: row.lag > 0 ? "warn" : "dim" }, "none")) },
      { title: "Lag", kind: "num", sort: "lag", cell: (row) => brief(row.lag) },
      { title: "In flight", kind: "num", sort: "unacked", hide: true, cell: (row) => brief(row.unacked) },
      { title: "To retry", kind: "num", hide: true, cell: (row) => brief(row.waiting) },
      { title: "Out /s", kind: "num", sort: "out", cell: (row) => rate(row.outRate) },
      { title: "Acked /s", kind: "num", hide: true, cell: (row) => rate(row.ackedRate) },
    ],
  });
  return { element: [h("div", { class: "head" }, h("h1", {}, "Groups"), h("span", { class: "grow" }), rows.search), h("section", { class: "panel" }, rows.element)], live: rows.live, update: rows.update };
}

function one(at, topic, group) {
  const path = `/topics/${part(topic)}/groups/${part(group)}`;
  const about = h("div"), wrong = h("p", { class: "notice bad hidden", role: "alert" });
  const table = new Table("partitions of the group", [
    { title: "Partition", kind: "num", cell: (row) => String(row.partition) },
    { title: "Member", kind: "name", cell: (row) => row.member || "nobody" },
    { title: "Committed", kind: "num", cell: (row) => count(row.committed) },
    { title: "End", kind: "num", cell: (row) => count(row.endOffset) },
    { title: "Lag", kind: "num", cell: (row) => count(row.lag) },
    { title: "In flight", kind: "num", cell: (row) => count(row.unacked) },
    { title: "To retry", kind: "num", cell: (row) => count(row.waiting) },
    { title: "Missed", kind: "num", hide: true, cell: (row) => count(row.missed) },
  ], { key: (row) => row.partition });
  let info = null;
  const load = async () => {
    try {
      info = await get(path);
      wrong.classList.add("hidden");
    } catch (error) { wrong.textContent = error.message; wrong.classList.remove("hidden"); return; }
    table.update(info.partitions);
    go.disabled = false;
    const total = (field) => info.partitions.reduce((sum, each) => sum + each[field], 0);
    about.replaceChildren(facts([["Topic", link(topic)], ["Members", info.members.length ? info.members.join(", ") : "none"], ["Generation", String(info.generation)], ["Lag", count(total("lag"))], ["Slowest", slowest(info.partitions)], ["In flight", count(total("unacked"))], ["To retry", count(total("waiting"))], ["Missed", total("missed") ? `${count(total("missed"))} were taken by retention first` : ""]]));
  };
  const go = h("button", { type: "button", disabled: true, onclick: () => seek() }, "Seek…"); // once it is known where the group stands
  const mayRead = may("read", { topic, group });
  const refresh = mayRead ? every(2000, load) : () => {};
  if (mayRead) load();

  const seek = () => {
    const preview = h("div", { "aria-live": "polite" });
    let turns = 0;
    const rows = new Table("what would change", [
      { title: "Partition", kind: "num", cell: (row) => String(row.partition) },
      { title: "From", kind: "num", cell: (row) => count(row.committed) },
      { title: "To", kind: "num", cell: (row) => count(row.to) },
      { title: "", reader: "What that means", cell: (row) => (row.to === row.committed ? "stays" : row.to < row.committed ? `${count(row.committed - row.to)} come again` : `${count(row.to - row.committed)} are skipped`) },
    ], { key: (row) => row.partition });
    // What would change, of the group as it is now; what retention has taken does not come again.
    const moves = async (v) => {
      const [now, { partitions: ends }] = await Promise.all([get(path), get(`/topics/${part(topic)}`)]);
      const starts = new Map(ends.map((each) => [each.partition, each.startOffset]));
      let to = new Map(now.partitions.map((each) => [each.partition, each.endOffset]));
      if (v.to === "earliest") to = starts;
      if (v.to === "time") to = v.since ? new Map((await get(query(`/topics/${part(topic)}/offsets`, { timeMs: Date.parse(v.since) }))).positions.map((each) => [each.partition, each.offset])) : new Map();
      if (v.to === "offset") {
        const { partition, startOffset, endOffset } = ends.find((each) => String(each.partition) === v.partition), offset = Number(v.offset) || 0;
        if (offset < startOffset || offset > endOffset) throw new Error(`Offset: partition ${partition} has those from ${startOffset} to ${endOffset}`);
        to = new Map([[partition, offset]]);
      }
      return now.partitions.map((each) => { const from = Math.max(each.committed, starts.get(each.partition) ?? 0), there = to.get(each.partition); return { ...each, committed: from, to: there >= 0 ? there : from }; });
    };
    preview.append(h("h3", {}, "Preview"), rows.element);
    preview.update = async (v) => {
      const turn = ++turns;
      let moved = [], wrong = "";
      try { moved = await moves(v); } catch (error) { wrong = error.message; }
      if (turn !== turns) return; // something else was typed since
      rows.none.textContent = wrong;
      rows.update(moved);
    };
    const first = { to: "earliest", offset: "0" };
    const numbers = info.partitions.map((each) => [String(each.partition), `partition ${each.partition}`]);
    act({
      title: `Where ${group} goes on`, label: "Seek", isDanger: true, more: preview,
      note: info.members.length ? "The group has members: they must leave before it can be moved." : "What lies between is skipped, or comes again.",
      fields: [
        { name: "to", title: "Go on", kind: "select", value: first.to, options: [["earliest", "at the beginning"], ["latest", "at the end"], ["time", "at a time"], ["offset", "at an offset"]] },
        { name: "since", title: "Time, by your clock: 18:00, 1h ago, yesterday 9:00, 2026-12-24 18:00", kind: "moment", valueMs: Math.floor(Date.now() / 1000 - 3600) * 1000, isPast: true, isFixed: true, when: (v) => v.to === "time" },
        { name: "partition", title: "Partition: the others stay where they are", kind: "select", options: numbers, when: (v) => v.to === "offset" }, { name: "offset", title: "Offset", kind: "number", min: "0", value: first.offset, when: (v) => v.to === "offset" }],
      check: (v) => (v.to === "time" && !v.since ? "Time: say at which the group goes on" : ""),
      sure: async (v) => consequence(group, await moves(v)),
      asked: (v) => {
        const position = { partition: Number(v.partition), offset: Number(v.offset) || 0 };
        const body = v.to === "time" ? { since: v.since } : v.to === "offset" ? { positions: [position] } : { start: v.to };
        const to = v.to === "offset" ? ["--offset", `${position.partition}/${position.offset}`] : ["--to", v.to === "time" ? v.since : v.to];
        return { method: "POST", path: `${path}/seek`, body, cli: waterclock("groups", "seek", topic, group, ...to) };
      },
      done: () => { load(); return "Moved"; },
    });
    preview.update(first);
  };
  const forget = () => act({ title: `Forget ${group}`, label: "Forget", isDanger: true, note: "How far it has come is forgotten with it.", asked: () => ({ method: "DELETE", path, cli: waterclock("groups", "delete", topic, group) }), done: () => { location.hash = "#/groups"; return "Forgotten"; } });
  return {
    title: group,
    element: [h("div", { class: "head" }, h("div", {}, h("div", { class: "crumb" }, h("a", { href: "#/groups" }, "Groups")), h("h1", {}, group)), h("span", { class: "grow" }), may("consume", { topic, group }) ? [mayRead ? go : null, h("button", { type: "button", class: "danger", onclick: forget }, "Forget…")] : null), wrong, ...(mayRead ? [panel("Group", about), panel("Partitions", table.element)] : [unreadable("group")])],
    close: refresh, back: () => mayRead && load(),
  };
}
