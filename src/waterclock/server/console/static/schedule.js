// The schedule: what is to come, by second, minute, hour and day, and what has fired and was late; a
// list of what is to come; what comes again and again.
import { get, part, query, remember } from "./api.js";
import { act, command, waterclock } from "./action.js";
import { choice, dialog, empty, every, facts, h, later, panel, put, toast } from "./dom.js";
import { bytes, count, cut, moment, span, time, until } from "./format.js";
import { body, headersOf, keyOf, publish } from "./messages.js";
import { may, mayAny, mayPublish, sees } from "./rights.js";
import { Table } from "./table.js";
import { STEPS, timeline } from "./timeline.js";
import { link } from "./topics.js";

const SCALES = [["minute", "By second"], ["hour", "By minute"], ["day", "By hour"], ["month", "By day"]];
const PAGE = 50;
const ASKED_MAX = 5;
const NAMED_PAGE = 1000;
const PAST_MS = 20000;
const EVERY_MS = 5000;
const REST = 20; // times as long as an answer took

export function schedule(at) {
  const asked = { topic: at.query.get("topic") ?? "", scale: STEPS[at.query.get("scale")] ? at.query.get("scale") : "hour", key: at.query.get("key") ?? "" };
  const given = ["from", "to"].map((name) => Date.parse(at.query.get(name) ?? ""));
  let span_ = given.some(Number.isNaN) ? null : given; // what of the timeline is chosen
  let opened = {}; // the message, or what comes again, whose window is open
  let topics = [], pending = []; // what is told of each second; all that wait for messages
  let ahead = 0; // the node's clock, which says what is due, of the reader's
  const clockOfNode = () => Date.now() + ahead;
  let now = clockOfNode();

  const keep = (isStep = true) => {
    const [from, to] = (span_ ?? []).map((ms) => new Date(ms).toISOString());
    remember("schedule", { topic: asked.topic, scale: asked.scale === "hour" ? "" : asked.scale, key: asked.key, from, to, ...opened }, isStep);
  };
  const hold = (box, what) => {
    const set = (one) => { opened = one; keep(false); };
    set(what);
    box.addEventListener("close", () => set({}));
  };
  let isTyping = false; // what is typed is one step, not one for each letter
  const select = h("select", { "aria-label": "Topic", onchange: () => { asked.topic = select.value; span_ = null; keep(); offerPublish(); load(); } }, h("option", { value: "" }, "all topics"));
  const line = timeline((chosen) => { span_ = chosen; keep(); draw(); list().catch(() => {}); });
  const key = h("input", { type: "search", placeholder: "Key", "aria-label": "Only of this key", value: asked.key, onfocus: () => { isTyping = false; }, oninput: later(() => { asked.key = key.value; keep(!isTyping); isTyping = true; list().catch(() => {}); }, 300) });

  const timers = new Table("scheduled messages", [
    { title: "Due", kind: "when", same: (row) => String(row.dueMs), cell: (row) => time(row.dueMs) },
    { title: "", kind: "when", reader: "How long until then", hide: true, cell: (row) => until(row.dueMs, now) },
    { title: "Topic", kind: "name", same: (row) => row.topic, cell: (row) => link(row.topic) },
    { title: "Key", kind: "name", cell: (row) => cut(keyOf(row), 60) },
    { title: "Value", kind: "body", hide: true, cell: (row) => cut(row.value ?? (row.valueBase64 ? `base64 ${row.valueBase64}` : bytes(row.valueBytes)), 120) },
    { title: "", kind: "tools", same: (row) => String(row.dueMs), cell: (row) => tools(row) },
  ], { key: (row) => `${row.topic}/${row.partition}/${row.offset}`, none: "Nothing is scheduled here." });
  const more = h("button", { type: "button", class: "small hidden", onclick: () => list(true).catch(() => {}) }, "More");
  const rest = h("p", { class: "dim", "aria-live": "polite" });
  let shown = [], loadedMs = 0, next = "", isTurned = false, asks = 0;
  // What fired since the list was read is no more to come.
  const left = () => shown.filter((row) => row.dueMs < loadedMs || row.dueMs > now - 500);

  // Of millions, a count or a list takes a node long: what is asked by itself takes a small part of its time.
  let restsUntil = 0;
  const slow = h("p", { class: "dim hidden" });
  const timed = async (path_) => {
    const began = performance.now();
    try {
      return await get(path_);
    } finally {
      const ended = performance.now(), took = ended - began;
      if (ended + REST * took >= restsUntil) {
        restsUntil = ended + REST * took;
        slow.classList.toggle("hidden", REST * took <= EVERY_MS);
        put(slow, `As it was at ${moment(clockOfNode())}: the node took ${span(took)} to answer, and is asked again in ${span(REST * took)}.`);
      }
    }
  };

  const isSeen = () => !asked.topic || (!asked.topic.startsWith("__") && may("read", { topic: asked.topic }));
  const path = () => (asked.topic ? `/topics/${part(asked.topic)}/scheduled` : "/scheduled");

  // What was is much, and the bars of it are minutes: it need not be asked for with each look.
  let known = { what: "", ms: 0, was: null };
  const past = async () => {
    if (!may("read", asked.topic ? { topic: asked.topic } : {})) return null;
    const what = query("/history", { topic: asked.topic, range: asked.scale === "day" ? "day" : "hour" });
    if (known.what !== what || now - known.ms > PAST_MS) known = { what, ms: now, was: await get(what).catch(() => null) };
    return known.was;
  };

  const draw = async () => {
    const [step, steps] = STEPS[asked.scale], first = Math.floor(now / step) * step;
    const { scale } = asked, what = `${scale} ${path()}`;
    const ask = () => timed(query(`${path()}/count`, { fromMs: first, stepMs: step, steps })).catch((error) => ({ wrong: error.message }));
    const [found, was] = await Promise.all([isSeen() ? ask() : { wrong: "you may not read this topic." }, past()]);
    if (what !== `${asked.scale} ${path()}`) return; // the reader wants to know something else by now
    if (found?.topics) { pending = found.topics.map((row) => row.topic); offer(); }
    line.show({ scale, first, found, was, chosen: span_ });
  };

  // A page may be short and have a next one, if few are of the key: it is asked for some of them.
  // What the reader asked for meanwhile is not undone by a list that is read again.
  const list = async (isMore = false, isAgain = false) => {
    const mine = isAgain ? asks : ++asks, askedMs = clockOfNode(), rows = [];
    isTurned = isMore;
    let page = isMore ? next : "";
    try {
      for (let turn = 0; isSeen() && rows.length < PAGE && turn < ASKED_MAX && (page || !turn); turn++) {
        const found = await timed(query(path(), { limit: PAGE - rows.length, values: true, key: asked.key, fromMs: span_?.[0], toMs: span_?.[1], page }));
        if (mine !== asks) return;
        rows.push(...found.scheduled.map((row) => ({ ...row, topic: row.topic ?? asked.topic })));
        page = found.nextPage;
      }
    } catch (error) {
      if (mine === asks) put(rest, `The list is not what is there now: ${error.message}`);
      throw error;
    }
    [next, loadedMs] = [page, askedMs];
    shown = isMore ? [...shown, ...rows] : rows;
    more.classList.toggle("hidden", !next);
    put(rest, asked.key ? `The list of a key is as it was at ${moment(loadedMs)}.${next ? ` ${count(shown.length)} were found so far: “More” looks on.` : ""}` : !next ? "" : `These are the next ${count(shown.length)} by due time: “More” shows those that follow.`);
    timers.update(left());
  };

  const named = (row) => ({ partition: row.partition, offset: row.offset });
  const place = (row) => `${row.partition}/${row.offset}`;
  const after = (words) => (answer) => { setTimeout(load, 200); const outcome = answer.outcomes?.[0]; return outcome === "done" ? words : `It was too late: ${outcome}`; };
  const move = (row) => act({
    title: "Another time", label: "Move", fields: [{ name: "at", title: "Due, by your clock: 18:00, tomorrow 9:00, +1h, 2026-12-24 18:00", kind: "moment", valueMs: row.dueMs, required: true }],
    asked: (v) => ({ method: "POST", path: `/topics/${part(row.topic)}/reschedule`, body: { messages: [named(row)], at: v.at }, cli: waterclock("schedule", "move", row.topic, place(row), "--to", v.at) }), done: after("Moved"),
  });
  const fire = (row) => act({ title: "Fire now", label: "Fire", note: `Due ${moment(row.dueMs)}; it is delivered now instead.`, asked: () => ({ method: "POST", path: `/topics/${part(row.topic)}/reschedule`, body: { messages: [named(row)], delay: "0s" }, cli: waterclock("schedule", "move", row.topic, place(row), "--to", "+0s") }), done: after("Fired") });
  const cancel = (row) => act({ title: "Cancel", label: "Cancel it", isDanger: true, note: `Due ${moment(row.dueMs)}; it will not come.`, asked: () => ({ method: "POST", path: `/topics/${part(row.topic)}/cancel`, body: { messages: [named(row)] }, cli: waterclock("schedule", "cancel", row.topic, place(row)) }), done: after("Cancelled") });
  const tools = (row) => {
    const open = h("button", { type: "button", class: "small", onclick: () => whole(row), "aria-label": `Show ${row.topic} ${place(row)}` }, "Show");
    if (!may("schedule", { topic: row.topic })) return open;
    const others = [["Fire now", fire, ""], ["Move", move, ""], ["Cancel", cancel, "danger"]]; // on phones behind Show
    return [...others.flatMap(([title, run, mood]) => [h("button", { type: "button", class: `small phone-hide ${mood}`, onclick: () => run(row) }, title), " "]), open];
  };
  const whole = (row) => {
    const box = dialog(`${row.topic} ${place(row)}`, facts([["Due", time(row.dueMs)], ["Key", keyOf(row)], ["Id", row.messageId], ["Stored", row.appendedMs ? time(row.appendedMs) : ""], ...headersOf(row).map(([n, t]) => [`header ${n}`, t])]), h("h3", {}, "Value"), body(row), h("div", { class: "buttons" }, ...may("schedule", { topic: row.topic }) ? [then("Cancel…", cancel, "danger"), then("Move…", move), then("Fire now…", fire)] : [], then("Close", () => {})));
    hold(box, { message: `${row.topic}/${place(row)}`, due: new Date(row.dueMs).toISOString() });
    function then(title, run, mood) { return h("button", { type: "button", class: mood, autofocus: title === "Close", onclick: () => { box.close(); run(row); } }, title); }
  };
  // The one that the address names, among those of its partition that are due then.
  const open = async (named, dueMs) => {
    const [, topic, partition, offset] = /^(.+)\/(\d+)\/(\d+)$/.exec(named) ?? [];
    let row = null, page = "";
    await null; // the page is shown by then
    for (let turn = 0; topic && dueMs && !row && turn < ASKED_MAX && (page || !turn); turn++) {
      const { scheduled, nextPage } = await get(query(`/topics/${part(topic)}/scheduled`, { limit: NAMED_PAGE, values: true, partition, fromMs: dueMs, toMs: dueMs + 1, page }));
      row = scheduled.find((each) => String(each.offset) === offset);
      page = scheduled.at(-1)?.offset >= Number(offset) ? "" : nextPage;
    }
    if (!line.element.isConnected) return; // the page was left meanwhile
    if (row) whole({ ...row, topic });
    else toast(page ? `${named} is not among the many that are due then, as far as they were looked through.` : `${named} is not to come any more${dueMs ? ` at ${moment(dueMs)}` : ""}: it fired, or was moved or cancelled.`, true);
  };

  const offer = () => {
    const names = [...new Set([...pending, ...topics.map((row) => row.topic), asked.topic])].filter(Boolean).sort(), text = names.join("\n");
    if (select.dataset.names === text) return;
    select.dataset.names = text;
    select.replaceChildren(h("option", { value: "" }, "all topics"), ...names.map((name) => h("option", { value: name, selected: name === asked.topic }, name)));
  };

  const post = h("button", { type: "button", class: "main", onclick: () => publish(asked.topic, { known: topics.map((row) => row.topic), then: () => setTimeout(load, 200) }) }, "Publish…");
  const tools_ = h("span");
  const offerPublish = () => tools_.replaceChildren(...((asked.topic ? mayPublish(asked.topic) : mayAny("publish", "topic")) ? [post] : []));
  offerPublish();

  const again = recurring(asked, hold);
  const load = () => { now = clockOfNode(); return Promise.all([draw(), list(), again.load()]).catch(() => {}); };
  const isKeptNew = () => !isTurned && !asked.key && !document.querySelector("dialog"); // for a key the node looks through many
  const refresh = every(EVERY_MS, () => {
    now = clockOfNode();
    const isRested = performance.now() >= restsUntil;
    return Promise.allSettled([again.load(), isRested && draw(), isRested && isKeptNew() && list(false, true)]);
  });
  const ticking = every(1000, () => { now = clockOfNode(); timers.update(left()); again.tick(now); });
  let isFirst = true;
  const fail = (error) => toast(error.message, true), [message, recurrence] = ["message", "recurrence"].map((name) => at.query.get(name));
  if (message) open(message, Date.parse(at.query.get("due") ?? "")).catch(fail);
  else if (recurrence) again.open(recurrence).catch(fail);
  return {
    element: [
      h("div", { class: "head" }, h("h1", {}, "Schedule"), h("span", { class: "grow" }), select, key, choice("Scale", SCALES, asked.scale, (value) => { asked.scale = value; span_ = null; keep(); draw(); list().catch(() => {}); }), tools_),
      line.element, slow, panel("Messages", timers.element, more, rest), again.element,
    ],
    live: () => ({ view: "topics", sort: "pending", descending: true, limit: 200 }),
    update(snapshot) {
      ahead = snapshot.aheadMs;
      if (!snapshot.topics) return;
      topics = snapshot.topics.filter((row) => row.pending > 0 || row.topic === asked.topic);
      offer();
      if (isFirst) { isFirst = false; load(); }
    },
    close() { refresh(); ticking(); }, back: load,
  };
}

// What comes again and again.
function recurring(asked, hold) {
  let now = Date.now(), rows = [];
  const asNow = (row) => rows.find((each) => each.name === row.name) ?? row; // its button is older
  const table = new Table("recurrences", [
    { title: "Name", kind: "name", same: (row) => row.name, cell: (row) => h("button", { type: "button", class: "plain", onclick: () => show(asNow(row)) }, row.name) },
    { title: "Topic", kind: "name", hide: true, same: (row) => row.topic, cell: (row) => link(row.topic) },
    { title: "Rule", cell: (row) => row.cron ?? `every ${span(row.everyMs)}` },
    { title: "Zone", hide: true, cell: (row) => row.zone },
    { title: "Next", kind: "when", same: (row) => `${row.nextMs}/${row.isPaused}`, cell: (row) => (row.nextMs ? time(row.nextMs) : h("span", { class: "dim" }, row.isPaused ? "paused" : "never again")) },
    { title: "", kind: "when", reader: "How long until then", hide: true, cell: (row) => (row.nextMs ? until(row.nextMs, now) : "") },
    { title: "", kind: "tools", same: (row) => `${row.topic}/${row.isPaused}`, cell: (row) => (may("schedule", { topic: row.topic }) ? [h("button", { type: "button", class: "small", onclick: () => pause(row) }, row.isPaused ? "Resume" : "Pause"), " ", h("button", { type: "button", class: "small danger", onclick: () => end(row) }, "End")] : h("span")) },
  ], { key: (row) => row.name, none: "Nothing comes again and again." });
  const load = async () => { rows = asked.topic && !sees({ topic: asked.topic }) ? [] : (await get(query("/recurrences", { topic: asked.topic }))).recurrences; table.update(rows); };
  const times = (found, zone) => {
    const parts = new Intl.DateTimeFormat("en-GB", { timeZone: zone, weekday: "short", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" });
    const shownIn = (ms) => { const p = Object.fromEntries(parts.formatToParts(ms).map((each) => [each.type, each.value])); return `${p.weekday} ${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second}`; };
    return h("ol", {}, found.map((ms) => h("li", {}, `${shownIn(ms)} `, h("span", { class: "dim" }, "here ", time(ms), `, ${until(ms, Date.now())}`))));
  };
  const ask = (rule, zone, start) => get(query("/recurrence-times", { rule: rule.cron ?? rule.every, zone, startMs: start })).then((found) => found.timesMs);
  const show = async (row) => {
    const next = h("div", {}, empty("…"));
    const box = dialog(row.name, facts([["Topic", link(row.topic)], ["Rule", row.cron ?? `every ${span(row.everyMs)}`], ["Zone", row.zone], ["Jitter", row.jitterMs ? span(row.jitterMs) : ""], ["From", row.startMs ? time(row.startMs) : ""], ["Until", row.endMs ? time(row.endMs) : ""], ["Value", row.message.value ?? ""]]), h("h3", {}, `Next ten times, in ${row.zone}`), next, h("div", { class: "buttons" }, h("button", { type: "button", autofocus: true, onclick: () => box.close() }, "Close")));
    hold(box, { recurrence: row.name });
    const rule = row.cron ? { cron: row.cron } : { every: `${row.everyMs}ms` };
    next.replaceChildren(times((await ask(rule, row.zone, row.cron || !row.nextMs ? undefined : row.nextMs - row.everyMs)).filter((ms) => !row.endMs || ms < row.endMs), row.zone));
  };
  const open = async (name) => {
    await load();
    const row = rows.find((each) => each.name === name);
    if (!table.element.isConnected) return; // the page was left meanwhile
    if (row) await show(row);
    else toast(`There is no recurrence ${name} any more.`, true);
  };
  const end = (row) => act({ title: `End ${row.name}`, label: "End it", isDanger: true, note: "The occurrence that waits goes with it.", asked: () => ({ method: "DELETE", path: `/recurrences/${part(row.name)}`, cli: waterclock("schedule", "unrepeat", row.name) }), done: () => { load(); return "Ended"; } });
  const pause = (row) => {
    const verb = row.isPaused ? "resume" : "pause";
    act({
      title: `${row.isPaused ? "Resume" : "Pause"} ${row.name}`, label: row.isPaused ? "Resume" : "Pause", note: row.isPaused ? "It comes again by its rule, from now on; what it missed is not made up for." : "It is kept, and nothing of it comes until it is resumed. The occurrence that waits is cancelled.",
      asked: () => ({ method: "POST", path: `/recurrences/${part(row.name)}/${verb}`, cli: waterclock("schedule", verb, row.name) }),
      done: (now) => { load(); return now.nextMs ? `${now.name} comes next ${moment(now.nextMs)}` : now.isPaused ? "Paused" : "Resumed"; },
    });
  };
  const make = () => {
    const preview = h("div", { "aria-live": "polite" });
    preview.update = later(async (v) => {
      if (!v.rule) return preview.replaceChildren();
      try { preview.replaceChildren(h("h3", {}, "Next ten times"), times(await ask(ruleOf(v), v.zone), v.zone)); } catch (error) { preview.replaceChildren(h("p", { class: "notice" }, error.message)); }
      return undefined;
    }, 300);
    const ruleOf = (v) => (/^\s*[\d.]+\s*[a-z]/i.test(v.rule) && v.rule.trim().split(/\s+/).length < 3 ? { every: v.rule.trim() } : { cron: v.rule.trim() });
    act({
      title: "Again and again", label: "Make it", more: preview,
      fields: [{ name: "name", title: "Name", required: true }, { name: "topic", title: "Topic", required: true, value: asked.topic }, { name: "rule", title: "Rule: cron (0 9 * * MON), or a length of time (90s, 1h)", required: true }, { name: "zone", title: "Zone", value: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC", required: true }, { name: "value", title: "Message", kind: "area" }, { name: "key", title: "Key" }],
      asked: (v) => { const rule = ruleOf(v); return { method: "PUT", path: `/recurrences/${part(v.name)}`, body: { topic: v.topic, ...rule, zone: v.zone, value: v.value, key: v.key || undefined }, cli: command("schedule repeat", [v.name, v.topic, v.value], ...(rule.cron ? ["--cron", rule.cron, "--zone", v.zone] : ["--every", rule.every]), ...(v.key ? ["--key", v.key] : [])) }; },
      done: (made) => { load(); return `${made.name} comes next ${moment(made.nextMs)}`; },
    });
  };
  return { element: panel("Again and again", mayAny("schedule", "topic") ? [h("button", { type: "button", class: "small", onclick: make }, "New…")] : [], table.element), load, open, tick(at) { now = at; table.update(rows); } };
}
