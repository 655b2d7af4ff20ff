// Jobs: runs on Spark and what they report, and replays that have a name.
import { get, part, remember } from "./api.js";
import { act, waterclock } from "./action.js";
import { dialog, every, facts, h, panel, toast } from "./dom.js";
import { bytes, count, cut, pretty, span, time } from "./format.js";
import { may } from "./rights.js";
import { Table } from "./table.js";
import { link } from "./topics.js";

const TAGS = { running: "", done: "good", failed: "bad", silent: "warn" };
const SAID = { silent: "not heard from" };

// What a run does, or why it does nothing any more.
function what(run) {
  if (run.state === "silent") return ["since ", time(run.heardMs), run.stage ? `, then ${run.stage}` : ""];
  if (run.state === "running") return [run.stage || "starting", run.tasks ? ` · ${count(run.tasksDone)} of ${count(run.tasks)} tasks` : ""];
  return [h("span", { title: run.error }, cut(run.error))];
}

function show(run) {
  const close = () => box.close();
  const box = dialog(`Run of ${run.job}`,
    facts([
      ["Name", run.name], ["Topic", run.topic || "all, or several"], ["State", SAID[run.state] ?? run.state],
      ["Started", time(run.startedMs)], ["Heard from", time(run.heardMs)], ["Ended", run.endedMs ? time(run.endedMs) : ""],
      ["Rows read", run.rowsRead === null ? "" : count(run.rowsRead)], ["Rows written", run.rows === null ? "" : count(run.rows)],
      ["Refused", run.rejected === null ? "" : count(run.rejected)], ["Bytes", run.sizeBytes === null ? "" : bytes(run.sizeBytes)],
    ]),
    run.error ? h("pre", { class: "message" }, run.error) : null,
    run.report ? h("pre", { class: "message", tabindex: "0", "aria-label": "Report" }, pretty(run.report) ?? run.report) : null,
    h("div", { class: "buttons" }, h("button", { type: "button", autofocus: true, onclick: close }, "Close")));
  return box;
}

export function jobs(at) {
  const keep = (run) => remember("jobs", { run });
  const open = (run) => { keep(run.name); show(run).addEventListener("close", () => keep("")); };
  const runs = new Table("runs of jobs", [
    { title: "Job", kind: "name", same: (row) => row.job, cell: (row) => row.job },
    { title: "Topic", kind: "name", same: (row) => row.topic, cell: (row) => (row.topic ? link(row.topic) : "all") },
    { title: "Started", kind: "when", hide: true, same: (row) => String(row.startedMs), cell: (row) => time(row.startedMs) },
    { title: "Took", kind: "num", hide: true, cell: (row) => span((row.endedMs || row.heardMs) - row.startedMs) },
    { title: "State", same: (row) => row.state, cell: (row) => h("span", { class: `tag ${TAGS[row.state] ?? ""}` }, SAID[row.state] ?? row.state) },
    { title: "Rows read", kind: "num", hide: true, cell: (row) => count(row.rowsRead) },
    { title: "Rows", kind: "num", cell: (row) => count(row.rows) },
    { title: "Refused", kind: "num", hide: true, cell: (row) => count(row.rejected) },
    { title: "Bytes", kind: "num", hide: true, cell: (row) => bytes(row.sizeBytes) },
    { title: "What", hide: true, same: (row) => `${row.state} ${row.stage} ${row.tasksDone}/${row.tasks} ${row.heardMs} ${row.error}`, cell: what },
    { title: "", kind: "tools", same: (row) => JSON.stringify(row), cell: (row) => h("button", { type: "button", class: "small", "aria-label": `Details of ${row.name}`, onclick: () => open(row) }, "Details") },
  ], { key: (row) => row.name, none: "No run yet: waterclock pipeline report makes one." });
  const sum = (positions) => positions.reduce((all, each) => all + each.offset, 0);
  const table = new Table("named replays", [
    { title: "Name", kind: "name", cell: (row) => row.name },
    { title: "Topic", kind: "name", same: (row) => row.topic, cell: (row) => link(row.topic) },
    { title: "Partitions", kind: "num", hide: true, cell: (row) => count(row.ends.length) },
    { title: "Offsets left", kind: "num", cell: (row) => count(Math.max(0, sum(row.ends) - sum(row.done))) },
    { title: "", kind: "tools", same: () => "", cell: (row) => (may("read", { topic: row.topic }) ? h("button", { type: "button", class: "small danger", onclick: () => forget(row) }, "Forget") : h("span")) },
  ], { key: (row) => row.name, none: "No replay has a name: waterclock replay TOPIC --name NAME begins one." });
  const forget = (row) => act({ title: `Forget ${row.name}`, label: "Forget", isDanger: true, note: "How far it has come is forgotten with it.", asked: () => ({ method: "DELETE", path: `/replays/${part(row.name)}`, cli: waterclock("replays", "delete", row.name) }), done: () => { load(); return "Forgotten"; } });
  const load = async () => {
    const [ran, named] = await Promise.all([get("/job-runs"), get("/replays")]);
    runs.update(ran.runs);
    table.update(named.replays);
    return ran.runs;
  };
  const wanted = at.query.get("run");
  load().then((all) => {
    if (!wanted || !runs.element.isConnected) return; // the page was left meanwhile
    const run = all.find((each) => each.name === wanted);
    if (run) open(run);
    else toast(`There is no run ${wanted} any more.`, true);
  }).catch((error) => toast(error.message, true));
  const refresh = every(3000, () => load().catch(() => {}));
  return { element: [h("div", { class: "head" }, h("h1", {}, "Jobs")), panel("Runs on Spark", runs.element), panel("Replays that have a name", table.element)], close: refresh, back: load };
}
