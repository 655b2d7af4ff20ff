// The audit: who was refused, and who changed what, the newest first.
import { get, messages } from "./api.js";
import { every, h, panel, put, toast } from "./dom.js";
import { count, time } from "./format.js";
import { Table, turned } from "./table.js";

const READ = 500;

export function audit(at) {
  let rows = [];
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
  const list = turned(at, "audit", table, { text: JSON.stringify, label: "Filter the audit", hint: "Filter" });
  const older = h("button", { type: "button", class: "small hidden", onclick: () => more() }, "Read older ones");
  const said = h("p", { class: "dim", "aria-live": "polite" });
  const show = () => {
    const left = [...ends].reduce((sum, [number, start]) => sum + Math.max(0, (lows.get(number) ?? start) - start), 0);
    list.update(rows);
    older.classList.toggle("hidden", !left);
    put(said, left ? `The last ${count(rows.length)} entries are here, and the filter looks at these; ${count(left)} older ones were not read.` : "");
  };
  // How far each partition was read, up and down, and where it begins: only what is beyond is asked for.
  const read = new Map(), lows = new Map(), ends = new Map();
  let kept = READ;
  const take = (found) => {
    const known = new Map(rows.map((row) => [row.at, row]));
    for (const m of found) known.set(`${m.partition}/${m.offset}`, { ...JSON.parse(m.value), at: `${m.partition}/${m.offset}`, place: [m.partition, m.offset] });
    rows = [...known.values()].sort((a, b) => b.time_ms - a.time_ms);
    // What is dropped of a page that is open for days can be read again.
    for (const { place: [number, offset] } of rows.splice(kept * Math.max(1, ends.size))) lows.set(number, Math.max(lows.get(number), offset + 1));
  };
  const news = async () => {
    const { partitions } = await get("/topics/__audit");
    for (const each of partitions) {
      ends.set(each.partition, each.startOffset);
      if (!lows.has(each.partition)) lows.set(each.partition, Math.max(each.startOffset, each.endOffset - READ));
    }
    const from = (each) => Math.max(each.startOffset, read.get(each.partition) ?? each.endOffset - READ);
    const found = await Promise.all(partitions.filter((each) => from(each) < each.endOffset).map((each) => messages("__audit", each.partition, from(each), READ)));
    found.flat().forEach((m) => read.set(m.partition, Math.max(read.get(m.partition) ?? 0, m.offset + 1)));
    take(found.flat());
    show();
  };
  const before = async () => {
    kept += READ;
    await Promise.all([...lows].filter(([number, low]) => low > ends.get(number)).map(async ([number, low]) => {
      const start = Math.max(ends.get(number), low - READ);
      const found = (await messages("__audit", number, start, low - start)).filter((m) => m.offset < low);
      lows.set(number, start);
      take(found);
    }));
    show();
  };
  const more = async () => {
    older.disabled = true;
    await reading?.catch(() => {});
    reading = before().finally(() => { reading = null; older.disabled = false; });
    await reading.catch((error) => toast(error.message, true));
  };
  let reading = null; // one at a time: two would ask for the same
  const load = () => (reading ??= news().finally(() => { reading = null; }));
  load().catch((error) => { if (error.status === 404) table.none.textContent = "This node keeps no audit: security.audit turns it on."; else toast(error.message, true); });
  const refresh = every(5000, () => load().catch(() => {}));
  return { element: [h("div", { class: "head" }, h("h1", {}, "Audit"), h("span", { class: "grow" }), list.search), panel("The last entries", list.element, said, older)], close: refresh, back: load };
}
