// The audit: who was refused, and who changed what, the newest first.
import { get, messages, remember } from "./api.js";
import { every, h, later, panel, toast } from "./dom.js";
import { count, time } from "./format.js";
import { Table } from "./table.js";

const READ = 500;

export function audit(at) {
  let rows = [];
  const search = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter the audit", value: at.query.get("filter") ?? "", oninput: later(() => { remember("audit", { filter: search.value }); show(); }, 150) });
  const table = new Table("audit", [
    { title: "When", kind: "when", same: (row) => String(row.time_ms), cell: (row) => time(row.time_ms) },
    { title: "Outcome", same: (row) => row.outcome, cell: (row) => h("span", { class: `tag ${{ allowed: "good", denied: "bad", failed: "warn" }[row.outcome] ?? ""}` }, row.outcome) },
    { title: "Principal", kind: "name", cell: (row) => row.principal || "–" },
    { title: "Operation", kind: "name", cell: (row) => row.operation },
    { title: "About", kind: "name", cell: (row) => [row.topic, row.stream, row.group, row.name].filter(Boolean).join(" / ") },
    { title: "From", hide: true, cell: (row) => row.address },
    { title: "Error", hide: true, cell: (row) => row.error },
    { title: "Times", kind: "num", hide: true, cell: (row) => count(row.count) },
  ], { key: (row) => row.at, none: "Nothing was refused or changed." });
  const show = () => { const wanted = search.value.toLowerCase(); table.update(rows.filter((row) => JSON.stringify(row).toLowerCase().includes(wanted)).slice(0, 200)); };
  const read = new Map(); // how far each partition was read: what comes later is all that is asked for
  const news = async () => {
    const { partitions } = await get("/topics/__audit");
    const from = (each) => Math.max(each.startOffset, each.endOffset - READ, read.get(each.partition) ?? 0);
    const found = await Promise.all(partitions.filter((each) => from(each) < each.endOffset).map((each) => messages("__audit", each.partition, from(each), READ)));
    const known = new Map(rows.map((row) => [row.at, row]));
    for (const m of found.flat()) {
      known.set(`${m.partition}/${m.offset}`, { ...JSON.parse(m.value), at: `${m.partition}/${m.offset}` });
      read.set(m.partition, Math.max(read.get(m.partition) ?? 0, m.offset + 1));
    }
    rows = [...known.values()].sort((a, b) => b.time_ms - a.time_ms).slice(0, READ * partitions.length);
    show();
  };
  let reading = null; // one at a time: two would ask for the same
  const load = () => (reading ??= news().finally(() => { reading = null; }));
  load().catch((error) => { if (error.status === 404) table.none.textContent = "This node keeps no audit: security.audit turns it on."; else toast(error.message, true); });
  const refresh = every(5000, () => load().catch(() => {}));
  return { element: [h("div", { class: "head" }, h("h1", {}, "Audit"), h("span", { class: "grow" }), search), panel("The last entries", table.element)], close: refresh, back: load };
}
