// What is to come as bars from now on, and before them what has fired: late in another colour.
import { h, panel, put } from "./dom.js";
import { clock, count, moment, span, utc } from "./format.js";

const DAY = 86400000;
export const STEPS = { minute: [1000, 60], hour: [60000, 60], day: [3600000, 48], month: [DAY, 31] };
// Of the node's own memory, as many steps as stand before now: of an hour by 5 s, of a day by minutes.
const PAST = { minute: 0, hour: 15, day: 12, month: 0 };
const WORDS = { minute: "a second", hour: "a minute", day: "an hour", month: "a day" };
const LATE_MS = 1000;

const length = (steps, step) => (step === 60000 ? `${steps} minutes` : `${steps} hours`);

// What fired in steps that end at `first`, from what /history answers; null where it knows nothing.
function past(was, first, step, steps) {
  const { fired = [], latenessMaxMs: late = [] } = was.series;
  const begin = was.endMs - fired.length * was.stepMs;
  return Array.from({ length: steps }, (_, n) => {
    const start = first - (steps - n) * step;
    const from = Math.max(0, Math.ceil((start - begin) / was.stepMs)), to = Math.min(fired.length, Math.ceil((start + step - begin) / was.stepMs));
    const known = fired.slice(from, Math.max(from, to)).filter((each) => each !== null);
    const total = known.reduce((sum, each) => sum + each, 0) * (was.stepMs / 1000);
    return { start, fired: known.length ? Math.round(total) : null, late: Math.max(0, ...late.slice(from, Math.max(from, to)).filter((each) => each !== null)) };
  });
}

export function timeline(choose) {
  const bars = h("div", { class: "bars", role: "toolbar", "aria-label": "What is to come: each bar shows its messages, arrow keys go from one to the next", onkeydown: move });
  const peak = h("div", { class: "dim", "aria-hidden": "true" });
  const axis = h("div", { class: "axis", "aria-hidden": "true" });
  const said = h("p", { class: "dim", "aria-live": "polite" });
  const fired = h("p", { class: "dim hidden" });
  let shape = "", focus = 0;

  const buttons = () => [...bars.querySelectorAll("button")];
  function move(event) {
    const all = buttons(), at = all.indexOf(document.activeElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || to === undefined || !all[to]) return;
    event.preventDefault();
    all[at].tabIndex = -1;
    all[(focus = to)].tabIndex = 0;
    all[to].focus();
  }

  const build = (scale, before, steps) => {
    focus = 0;
    bars.replaceChildren(
      ...Array.from({ length: before }, () => h("span", { class: "was" }, h("i"))),
      ...Array.from({ length: steps }, (_, n) => h("button", { type: "button", tabindex: n ? "-1" : "0", class: n ? undefined : "now" }, h("i"))));
    shape = `${scale}/${before}`;
  };
  const height = (bar, value, most) => { bar.firstChild.style.height = `${value ? Math.min(100, Math.max(2, (value / most) * 100)) : 0}%`; };

  // found: counts from `first` on, or why there are none (`wrong`); was: what /history knows; chosen: [from, to] or null.
  const show = ({ scale, first, found, was, chosen }) => {
    const [step, steps] = STEPS[scale];
    const before = was?.series.fired ? past(was, first, step, PAST[scale]) : [];
    const counts = Array.from({ length: steps }, (_, n) => found?.counts?.[n] ?? 0);
    // What is to come sets the scale: timers of a few seconds fire by the thousand, and never stand ahead.
    const ahead = Math.max(...counts), most = Math.max(1, ahead, Math.min(ahead ? 2 * ahead : Infinity, Math.max(0, ...before.map((each) => each.fired ?? 0))));
    if (shape !== `${scale}/${before.length}`) build(scale, before.length, steps);
    before.forEach((each, n) => {
      const bar = bars.children[n];
      height(bar, each.fired, most);
      bar.className = `was${each.late > LATE_MS ? " late" : ""}${each.fired > most ? " cut" : ""}`;
      bar.title = `${each.fired === null ? `${moment(each.start)}: not known` : `${moment(each.start)}: ${count(each.fired)} fired${each.fired ? `, within ${span(each.late)}` : ""}`}\n${utc(each.start)}`;
    });
    buttons().forEach((button, n) => {
      const start = first + n * step, text = `${moment(start)}: ${count(counts[n])}`;
      const isChosen = chosen !== null && chosen[0] === start;
      height(button, counts[n], most);
      button.title = `${text}\n${utc(start)}`;
      button.setAttribute("aria-label", text);
      button.setAttribute("aria-pressed", String(isChosen));
      button.onclick = () => choose(isChosen ? null : [start, start + step]);
    });
    put(peak, counts.some(Boolean) ? `${count(Math.max(...counts))} at most ${WORDS[scale]}` : "");
    mark(scale, first - before.length * step, step * (steps + before.length));
    tell(found, counts);
    const known = before.filter((each) => each.fired !== null), worst = Math.max(0, ...known.map((each) => each.late));
    fired.classList.toggle("hidden", !known.length);
    const late = known.filter((each) => each.late > LATE_MS).length;
    put(fired, known.length ? `${count(known.reduce((sum, each) => sum + each.fired, 0))} fired in the last ${length(before.length, step)}${worst ? `, all within ${span(worst)} of their time` : ""}${late ? `; late by more than ${span(LATE_MS)} where the bar is amber` : ""}.` : "");
  };
  const mark = (scale, from, length) => axis.replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((share) => {
    const at = from + share * length;
    return h("span", {}, scale === "month" ? moment(at).slice(0, 10) : clock(at).slice(0, scale === "minute" ? 8 : 5));
  }));
  const tell = (found, counts) => {
    if (found?.wrong) return put(said, `What is to come is not known: ${found.wrong}`);
    const total = found?.total ?? 0, overdue = found?.horizons.find((one) => one.withinMs === 0)?.count ?? 0;
    if (!total && !overdue) return put(said, "Nothing is to come.");
    return put(said, `${count(total)} to come, ${count(counts.reduce((a, b) => a + b, 0))} of it shown here${overdue ? `, ${count(overdue)} due and not fired yet` : ""}.`);
  };
  return { element: panel("To come", [peak], bars, axis, said, fired), show };
}
