// Jobs: replays that have a name, and how far their readers have come.
import { get, part } from "./api.js";
import { act, shell } from "./action.js";
import { h, panel, toast } from "./dom.js";
import { count } from "./format.js";
import { may } from "./rights.js";
import { Table } from "./table.js";
import { link } from "./topics.js";

export function jobs() {
  const sum = (positions) => positions.reduce((all, each) => all + each.offset, 0);
  const table = new Table("named replays", [
    { title: "Name", kind: "name", cell: (row) => row.name },
    { title: "Topic", kind: "name", same: (row) => row.topic, cell: (row) => link(row.topic) },
    { title: "Partitions", kind: "num", hide: true, cell: (row) => count(row.ends.length) },
    { title: "Offsets left", kind: "num", cell: (row) => count(Math.max(0, sum(row.ends) - sum(row.done))) },
    { title: "", kind: "tools", same: () => "", cell: (row) => (may("read", { topic: row.topic }) ? h("button", { type: "button", class: "small danger", onclick: () => forget(row) }, "Forget") : h("span")) },
  ], { key: (row) => row.name, none: "No replay has a name: `waterclock replay TOPIC --name NAME` begins one." });
  const forget = (row) => act({ title: `Forget ${row.name}`, label: "Forget", isDanger: true, note: "How far it has come is forgotten with it.", asked: () => ({ method: "DELETE", path: `/replays/${part(row.name)}`, cli: shell("waterclock", "replays", "delete", row.name) }), done: () => { load(); return "Forgotten"; } });
  const load = async () => table.update((await get("/replays")).replays);
  load().catch((error) => toast(error.message, true));
  const refresh = setInterval(() => load().catch(() => {}), 3000);
  return { element: [h("div", { class: "head" }, h("h1", {}, "Jobs")), panel("Replays that have a name", table.element)], close: () => clearInterval(refresh), back: load };
}
