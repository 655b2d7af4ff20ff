// Lines over time, drawn by uPlot in the colours of the theme.
import { h } from "./dom.js";
import { clock, moment, utc } from "./format.js";

const shown = new Set();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A value with no other beside it makes no line.
const isLonely = (values) => values.filter((value) => value !== null && value !== undefined).length < 3;

// series: [{title, show(value)}]; `data` is columns, the first the times in seconds.
export function plot(label, series, { tall = false } = {}) {
  const place = h("div", { class: tall ? "plot tall" : "plot", role: "img", "aria-label": label });
  const values = series.map(() => h("b", {}, "–"));
  const legend = h("div", { class: "legend" }, series.map((one, at) => h("span", {}, h("i", { class: `key p${at + 1}` }), one.title, " ", values[at])));
  const nothing = h("p", { class: "empty hidden" }, "Nothing is remembered of it yet.");
  let chart = null;
  let data = [[], ...series.map(() => [])];

  const say = (at) => series.forEach((one, row) => {
    const value = at === null ? data[row + 1].findLast((each) => each !== null && each !== undefined) : data[row + 1][at];
    const text = value === null || value === undefined ? "–" : one.show(value);
    if (values[row].textContent !== text) values[row].textContent = text;
  });

  const draw = () => {
    if (!place.isConnected || !place.clientWidth) return;
    chart?.destroy();
    const axis = { stroke: colour("--dim"), font: `11px ${colour("--font")}`, grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1, size: 4 } };
    chart = new uPlot({
      width: place.clientWidth, height: place.clientHeight, legend: { show: false }, padding: [8, 18, 0, 0],
      cursor: { y: false, points: { size: 5 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1] } },
      axes: [
        { ...axis, space: 70, size: 26, values: (_, ticks) => ticks.map((at) => (ticks.length > 1 && ticks[1] - ticks[0] >= 60 ? clock(at * 1000).slice(0, 5) : clock(at * 1000))) },
        { ...axis, size: 54, space: 32, values: (_, ticks) => ticks.map((value, at) => { const text = series[0].show(value); return at && text === series[0].show(ticks[at - 1]) ? "" : text; }) },
      ],
      series: [{}, ...series.map((one, at) => ({ stroke: colour(`--plot-${at + 1}`), width: 1.5, fill: at === 0 && series.length < 3 ? `${colour("--plot-1")}1c` : undefined, points: { show: (made, row) => isLonely(made.data[row]), size: 4 }, spanGaps: false }))],
      hooks: { setCursor: [(made) => { const at = made.cursor.idx; say(at ?? null); place.title = at === null || at === undefined ? "" : `${moment(data[0][at] * 1000)}\n${utc(data[0][at] * 1000)}`; }] },
    }, data, place);
  };

  const watch = new ResizeObserver(() => {
    if (!chart) draw();
    else if (place.clientWidth) chart.setSize({ width: place.clientWidth, height: place.clientHeight });
  });
  watch.observe(place);
  const made = {
    element: h("div", {}, legend, place, nothing),
    set(columns) {
      data = columns;
      const isEmpty = columns.slice(1).every((values) => values.every((value) => value === null || value === undefined));
      nothing.classList.toggle("hidden", !isEmpty);
      [legend, place].forEach((each) => each.classList.toggle("hidden", isEmpty));
      if (isEmpty) return;
      if (chart) chart.setData(columns);
      else draw();
      say(null);
    },
    redraw: draw,
    close() {
      shown.delete(made);
      watch.disconnect();
      chart?.destroy();
    },
  };
  shown.add(made);
  return made;
}

export const redrawAll = () => shown.forEach((each) => each.redraw());

// From what /history answers: times and the series that are named.
export function columns(history, names) {
  const length = Object.values(history.series)[0]?.length ?? 0;
  const times = Array.from({ length }, (_, at) => (history.endMs - (length - at) * history.stepMs) / 1000);
  return [times, ...names.map((name) => history.series[name] ?? Array(length).fill(null))];
}
