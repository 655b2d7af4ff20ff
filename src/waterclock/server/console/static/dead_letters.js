// Dead letters: what failed for good, why, and what becomes of it.
import { get, part, query, remember } from "./api.js";
import { act, waterclock } from "./action.js";
import { dialog, every, facts, h, panel, toast, unreadable } from "./dom.js";
import { count, cut, time } from "./format.js";
import { may } from "./rights.js";
import { Table } from "./table.js";
import { body, headersOf, keyOf, textOf } from "./messages.js";
import { listed } from "./topics.js";

export function deadLetters(at) {
  return at.path[1] === undefined ? list(at) : one(at, at.path[1]);
}

function list(at) {
  const rows = listed({
    at, view: "deadLetters", path: "dead-letters", label: "topics with dead letters", key: (row) => row.topic, rowsOf: (s) => s.deadLetters, none: "No message has failed for good.",
    columns: [
      { title: "Topic", kind: "name", sort: "name", same: (row) => row.topic, cell: (row) => h("a", { href: `#/dead-letters/${part(row.topic)}` }, row.topic) },
      { title: "Dead letters", kind: "num", sort: "count", same: (row) => String(row.count), cell: (row) => h("span", { class: row.count ? "bad" : "dim" }, count(row.count)) },
    ],
  });
  return { element: [h("div", { class: "head" }, h("h1", {}, "Dead letters"), h("span", { class: "grow" }), rows.search), h("section", { class: "panel" }, rows.element)], live: rows.live, update: rows.update };
}

function one(at, topic) {
  const path = `/topics/${part(topic)}/dead-letters`;
  const chosen = new Map();
  const position = (row) => `${row.position.partition}/${row.position.offset}`;
  const mayRead = may("read", { topic }), mayRedrive = may("publish", { topic }), mayPurge = may("admin", { topic });
  const table = new Table("dead letters", [
    { title: "", reader: "Chosen", same: (row) => String(chosen.has(position(row))), cell: (row) => h("input", { type: "checkbox", "aria-label": `Choose ${position(row)}`, checked: chosen.has(position(row)), onchange: (event) => { if (event.target.checked) chosen.set(position(row), row.position); else chosen.delete(position(row)); refreshTools(); } }) },
    { title: "Given up", kind: "when", same: (row) => String(row.deadLetteredMs), cell: (row) => time(row.deadLetteredMs) },
    { title: "Reason", cell: (row) => row.reason },
    { title: "Attempts", kind: "num", hide: true, cell: (row) => count(row.attempts) },
    { title: "Group", kind: "name", hide: true, cell: (row) => row.group },
    { title: "Key", kind: "name", hide: true, cell: (row) => cut(keyOf(row), 40) },
    { title: "Value", kind: "body", cell: (row) => cut(textOf(row), 90) },
    { title: "", kind: "tools", same: () => "", cell: (row) => h("button", { type: "button", class: "small", onclick: () => whole(row), "aria-label": `Show ${position(row)}` }, "Show") },
  ], { key: position, none: "No message of this topic has failed for good." });
  const more = h("button", { type: "button", class: "small hidden", onclick: () => load(true) }, "More");
  const said = h("span", { class: "dim" });
  let rows = [], next = "";
  const load = async (isMore = false) => {
    const page = await get(query(path, { limit: 100, page: isMore ? next : "" }));
    rows = isMore ? [...rows, ...page.deadLetters] : page.deadLetters;
    next = page.nextPage;
    said.textContent = `${count(page.total)} in all`;
    more.classList.toggle("hidden", !next);
    table.update(rows);
    refreshTools();
  };
  const positions = () => [...chosen.values()];
  const done = (word) => (answer) => { chosen.clear(); load(); return `${count(answer.count)} ${word}`; };
  const redrive = (some) => act({ title: some.length ? `Redrive ${some.length}` : "Redrive all", label: "Redrive", note: "They are published again where they came from, and leave this list.", asked: () => ({ method: "POST", path: `${path}/redrive`, body: some.length ? { positions: some } : {}, cli: waterclock("dlq", "redrive", topic, ...(some.length ? some.map((p) => `${p.partition}/${p.offset}`) : ["--all"])) }), done: done("published again") });
  const purge = (some) => act({ title: some.length ? `Purge ${some.length}` : "Purge all", label: "Let them go for good", isDanger: true, asked: () => ({ method: "POST", path: `${path}/purge`, body: some.length ? { positions: some } : {}, cli: waterclock("dlq", "purge", topic, ...(some.length ? some.map((p) => `${p.partition}/${p.offset}`) : ["--all"])) }), done: done("gone") });
  // One request, so that nothing comes between: it is published under the id of its redrive, edited or not.
  const edit = (row) => act({
    title: `Edit and redrive ${position(row)}`, label: "Redrive", fields: [{ name: "value", title: "Value", kind: "area", value: row.value ?? "" }],
    note: "It is published again where it came from, with its key and headers, and leaves this list.",
    asked: (v) => ({ method: "POST", path: `${path}/redrive`, body: { positions: [row.position], value: v.value }, cli: waterclock("dlq", "redrive", topic, position(row), ...(v.value ? ["--value", v.value] : ["--value="])) }),
    done: (answer) => { load(); return answer.count ? "Published again" : "It was off the list before"; },
  });
  const whole = (row) => {
    const tools = [h("button", { type: "button", autofocus: true, onclick: () => box.close() }, "Close")];
    if (mayRedrive) tools.unshift(h("button", { type: "button", class: "main", onclick: () => { box.close(); redrive([row.position]); } }, "Redrive…"));
    if (mayRedrive && row.value !== undefined) tools.unshift(h("button", { type: "button", onclick: () => { box.close(); edit(row); } }, "Edit and redrive…"));
    if (mayPurge) tools.unshift(h("button", { type: "button", class: "danger", onclick: () => { box.close(); purge([row.position]); } }, "Purge…"));
    const box = dialog(`${topic} ${position(row)}`, facts([["Reason", row.reason], ["Attempts", count(row.attempts)], ["Group", row.group], ["From", h("a", { href: query(`#/topics/${part(topic)}`, { message: `${row.origin.partition}/${row.origin.offset}` }) }, `${topic} ${row.origin.partition}/${row.origin.offset}`)], ["Given up", time(row.deadLetteredMs)], ["Key", keyOf(row)], ["Id", row.messageId], ...headersOf(row).map(([n, t]) => [`header ${n}`, t])]), h("h3", {}, "Value"), body(row), h("div", { class: "buttons" }, ...tools));
    keep(position(row));
    box.addEventListener("close", () => keep(""));
  };
  const keep = (letter) => remember(`dead-letters/${part(topic)}`, { letter });
  const again = h("button", { type: "button", onclick: () => redrive(positions()) }), drop = h("button", { type: "button", class: "danger", onclick: () => purge(positions()) });
  const refreshTools = () => { again.textContent = chosen.size ? `Redrive ${chosen.size}…` : "Redrive all…"; drop.textContent = chosen.size ? `Purge ${chosen.size}…` : "Purge all…"; again.disabled = drop.disabled = !rows.length; };
  refreshTools();
  const fail = (error) => toast(error.message, true);
  const named = at.query.get("letter");
  // A page begins at a position: so one beyond those that are shown is found as well.
  const find = async () => (await get(query(path, { limit: 1, page: named.replace("/", ":") }))).deadLetters;
  const open = async () => {
    const isOne = (row) => position(row) === named;
    const row = rows.find(isOne) ?? (/^\d{1,9}\/\d{1,15}$/.test(named) ? await find() : []).find(isOne);
    if (!table.element.isConnected) return; // the page was left meanwhile
    if (row) whole(row);
    else toast(`There is no dead letter ${named} any more.`, true);
  };
  if (mayRead) load().then(() => named && open()).catch(fail);
  const refresh = every(5000, () => mayRead && rows.length <= 100 && !document.querySelector("dialog") && load().catch(() => {}));
  return {
    title: `Dead letters of ${topic}`,
    element: [h("div", { class: "head" }, h("div", {}, h("div", { class: "crumb" }, h("a", { href: "#/dead-letters" }, "Dead letters")), h("h1", {}, topic)), said, h("span", { class: "grow" }), h("a", { class: "button", href: `#/topics/${part(topic)}` }, "Topic"), mayRead && mayRedrive ? again : null, mayRead && mayPurge ? drop : null), mayRead ? panel("Messages", table.element, more) : unreadable("topic")],
    close: refresh, back: () => mayRead && load().catch(fail),
  };
}
