// Streams: those in memory, who waits there, what they hold; one of them as it goes.
import { get, lines, part, query, remember } from "./api.js";
import { act, command } from "./action.js";
import { choice, every, facts, h, panel, put, soon, unreadable } from "./dom.js";
import { count, cut, member, pretty, time } from "./format.js";
import { may, mayAny } from "./rights.js";
import { Table } from "./table.js";

export function streams(at) {
  return at.path[1] === undefined ? list(at) : one(at.path[1], at.query.get("follow") !== "no");
}

const address = (name) => `#/streams/${part(name)}`;

function list(at) {
  let start = Number(at.query.get("start") ?? 0) || 0, next = 0, names = [];
  const before = [];
  const turn = (to) => { start = to; remember("streams", { start: start || "" }, true); load(); };
  const table = new Table("streams", [
    { title: "Stream", kind: "name", same: (row) => row.name, cell: (row) => h("a", { href: address(row.name) }, row.name) },
    { title: "Messages", kind: "num", cell: (row) => count(row.messages) },
    { title: "Holds at most", kind: "num", hide: true, cell: (row) => (row.inMemoryStreamSize === null ? "not set" : count(row.inMemoryStreamSize)) },
    { title: "Senders wait", kind: "num", cell: (row) => count(row.waitingSenders) },
    { title: "Receivers wait", kind: "num", cell: (row) => count(row.waiting - row.waitingSenders) },
    { title: "Last position", kind: "num", hide: true, cell: (row) => count(row.lastPosition) },
  ], { key: (row) => row.name, none: "No stream is in memory." });
  const search = h("input", { type: "search", placeholder: "Open by name", "aria-label": "Open a stream by its name", onchange: () => { if (search.value) location.hash = address(search.value); } });
  const back = h("button", { type: "button", class: "small", onclick: () => turn(before.pop() ?? 0) }, "‹ Before");
  const on = h("button", { type: "button", class: "small", onclick: () => { before.push(start); turn(next); } }, "Next ›");
  const load = async () => {
    const first = start, found = await get(query("/streams", { limit: 50, start }));
    if (first !== start) return; // turned over since
    names = found.streams;
    next = found.next;
    back.disabled = !start;
    on.disabled = !next;
    const unknown = { messages: -1, waiting: -2, waitingSenders: -1, lastPosition: -1, inMemoryStreamSize: null };
    const about = (name) => (may("read", { stream: name }) ? get(`/streams/${part(name)}`).catch(() => unknown) : unknown);
    const rows = await Promise.all(names.map(async (name) => ({ ...(await about(name)), name })));
    if (first === start) table.update(rows);
    pager.classList.toggle("hidden", !start && !next);
  };
  const pager = h("div", { class: "pager hidden" }, back, on);
  load().catch(() => {});
  const refresh = every(5000, () => load().catch(() => {}));
  const post = () => act({ title: "Send to a stream", label: "Send", fields: [{ name: "stream", title: "Stream", required: true }, { name: "message", title: "Message: JSON, or text", kind: "area" }], asked: (v) => sending(v.stream, v.message), done: () => { load(); return "Sent"; } });
  return { element: [h("div", { class: "head" }, h("h1", {}, "Streams"), h("span", { class: "grow" }), search, mayAny("publish", "stream") ? h("button", { type: "button", class: "main", onclick: post }, "Send…") : null), h("section", { class: "panel" }, table.element, pager)], close: refresh, back: load };
}

// JSON goes as it was typed.
function sending(stream, text) {
  let message = text;
  try { JSON.parse(text); } catch { message = JSON.stringify(text); }
  return { method: "POST", path: "/streams/send", body: `{"streamId":${JSON.stringify(stream)},"message":${message},"timeoutSeconds":0}`, cli: command("send", [stream, text]) };
}

function one(name, follows) {
  const about = h("div"), said = h("span", { class: "dim", "aria-live": "polite" });
  let stop = new AbortController(), shown = [], number = 0, isOn = follows;
  const table = new Table("messages", [
    { title: "Sent", kind: "when", same: () => "", cell: (row) => time(row.sentMs) },
    { title: "Id", kind: "name", hide: true, cell: (row) => cut(row.id ?? "", 40) },
    { title: "Message", kind: "body", same: () => "", cell: (row) => h("details", {}, h("summary", {}, cut(row.text, 120)), h("pre", {}, pretty(row.text) ?? row.text)) },
  ], { key: (row) => row.number, none: "It holds nothing yet; what comes is shown here." });
  const load = async () => {
    try {
      const info = await get(`/streams/${part(name)}`);
      about.replaceChildren(facts([["Messages", count(info.messages)], ["Holds at most", info.inMemoryStreamSize === null ? "not set yet" : count(info.inMemoryStreamSize)], ["Positions", `${count(info.firstPosition)}–${count(info.lastPosition)}`], ["Waiting senders", count(info.waitingSenders)], ["Waiting receivers", count(info.waiting - info.waitingSenders)], ...Object.entries(info.consumers).map(([who, at]) => [`consumer ${who}`, `at ${count(at)}`])]));
    } catch (error) { about.replaceChildren(h("p", { class: "dim" }, error.message)); }
  };
  const draw = soon(() => table.update(shown)); // not for each of many
  const follow = async () => {
    stop.abort();
    const mine = (stop = new AbortController());
    put(said, "following; nothing is taken from anybody");
    while (!mine.signal.aborted) {
      try {
        shown = [];
        await lines(query("/streams/events", { streamId: name }), (event) => {
          const data = event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
          if (!data) return true;
          const said_ = JSON.parse(data);
          shown = [{ number: ++number, text: member(data, "message") ?? data, id: said_.messageUuid, sentMs: said_.sentMs }, ...shown].slice(0, 200);
          draw();
          return true;
        }, { signal: mine.signal, separator: "\n\n" });
      } catch (error) { if (!mine.signal.aborted) put(said, error.message); }
      await new Promise((done) => setTimeout(done, 1000));
    }
  };
  const show = choice("Follow", [["off", "Hold"], ["on", "Follow live"]], isOn ? "on" : "off", (value) => { isOn = value === "on"; remember(`streams/${part(name)}`, { follow: isOn ? "" : "no" }, true); if (isOn) follow(); else { stop.abort(); put(said, ""); } });
  const post = () => act({ title: `Send to ${name}`, label: "Send", fields: [{ name: "message", title: "Message: JSON, or text", kind: "area" }], asked: (v) => sending(name, v.message), done: () => { if (mayRead) load(); return "Sent"; } });
  const resize = () => act({ title: `Resize ${name}`, label: "Resize", fields: [{ name: "size", title: "Messages it holds at most", kind: "number", min: "0", required: true }], asked: (v) => ({ method: "PATCH", path: `/streams/${part(name)}`, body: { inMemoryStreamSize: Number(v.size) }, cli: command("streams resize", [name, v.size]) }), done: () => { if (mayRead) load(); return "Resized"; } });
  const remove = () => act({ title: `Delete ${name}`, label: "Delete", isDanger: true, note: "With all its messages, stored ones included.", asked: () => ({ method: "DELETE", path: `/streams/${part(name)}`, cli: command("streams delete", [name]) }), done: () => { location.hash = "#/streams"; return "Gone"; } });
  const about_ = { stream: name }, mayRead = may("read", about_);
  const refresh = mayRead ? every(2000, load) : () => {};
  if (mayRead) load();
  else about.append(unreadable("stream"));
  if (isOn && may("consume", about_)) follow();
  return {
    title: name,
    element: [h("div", { class: "head" }, h("div", {}, h("div", { class: "crumb" }, h("a", { href: "#/streams" }, "Streams")), h("h1", {}, name)), h("span", { class: "grow" }), may("publish", about_) ? [h("button", { type: "button", class: "main", onclick: post }, "Send…"), h("button", { type: "button", onclick: resize }, "Resize…")] : null, may("admin", about_) ? h("button", { type: "button", class: "danger", onclick: remove }, "Delete…") : null), panel("Stream", about), may("consume", about_) ? panel("Messages", [said, show], table.element) : null].filter(Boolean),
    close() { refresh(); stop.abort(); }, rest: () => stop.abort(),
    seen: () => { if (isOn && stop.signal.aborted && may("consume", about_)) follow(); },
    back: () => mayRead && load(),
  };
}
