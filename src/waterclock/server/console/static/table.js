// A table whose cells change in place: what has the focus, or is selected, stays while rows come anew.
import { remember } from "./api.js";
import { h, empty, later } from "./dom.js";

const LONG = 60;
const classOf = (column) => [column.kind, column.hide ? "phone-hide" : ""].join(" ").trim() || undefined;

export class Table {
  // columns: {title, cell(row) -> text or element, kind: "num" | "name" | ..., sort, same(row) -> text that changes when an element must}
  constructor(label, columns, { key, none = "Nothing here.", sort, onsort } = {}) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.sort = sort ?? {};
    this.onsort = onsort;
    this.heads = columns.map((column) => this.#head(column));
    this.body = h("tbody");
    this.none = empty(none);
    this.table = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, ...this.heads)), this.body);
    this.element = h("div", {}, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, this.table), this.none);
    this.update([]);
  }

  #head(column) {
    const classes = { class: classOf(column) };
    if (!column.sort || !this.onsort) return h("th", { scope: "col", ...classes }, column.title || h("span", { class: "reader" }, column.reader ?? "Actions"));
    const isNow = this.sort.by === column.sort;
    const button = h("button", { type: "button", onclick: () => this.#sortBy(column) }, column.title);
    return h("th", { scope: "col", ...classes, "aria-sort": isNow ? (this.sort.descending ? "descending" : "ascending") : "none" }, button);
  }

  #sortBy(column) {
    const descending = this.sort.by === column.sort ? !this.sort.descending : column.kind === "num";
    this.sort = { by: column.sort, descending };
    this.columns.forEach((each, at) => {
      if (each.sort) this.heads[at].setAttribute("aria-sort", each === column ? (descending ? "descending" : "ascending") : "none");
    });
    this.onsort(this.sort);
  }

  // A name may be as long as a page: of a longer one some lines are shown, and all of it on hover.
  #line() {
    const cells = this.columns.map((column) => (column.kind === "name" ? h("div", { class: "clamp" }) : h("td", { class: classOf(column) })));
    const line = h("tr", {}, cells.map((cell, at) => (cell.tagName === "TD" ? cell : h("td", { class: classOf(this.columns[at]) }, cell))));
    return { line, cells, said: [] };
  }

  update(rows) {
    this.none.classList.toggle("hidden", rows.length > 0);
    this.table.classList.toggle("hidden", rows.length === 0);
    const wanted = rows.map((row) => {
      const key = this.key(row);
      const known = this.rows.get(key) ?? this.#line();
      this.columns.forEach((column, at) => {
        const made = column.same && known.said[at] === column.same(row) ? null : column.cell(row);
        if (made === null) return;
        if (made instanceof Node || Array.isArray(made)) {
          known.cells[at].replaceChildren(...[made].flat(Infinity).filter((one) => one !== null && one !== false));
          known.said[at] = column.same?.(row);
        } else if (known.said[at] !== made) {
          known.cells[at].textContent = made;
          known.said[at] = made;
        }
        if (column.kind === "name") known.cells[at].title = known.cells[at].textContent.length > LONG ? known.cells[at].textContent : "";
      });
      return [key, known];
    });
    this.rows = new Map(wanted);
    this.#place(new Set(wanted.map(([, known]) => known.line)));
  }

  // What stands where it belongs is not touched: what is taken out loses the focus, and a click that has begun.
  #place(lines) {
    const focused = document.activeElement;
    [...this.body.children].forEach((line) => { if (!lines.has(line)) line.remove(); });
    let at = this.body.firstChild;
    for (const line of lines) {
      if (line === at) at = at.nextSibling;
      else this.body.insertBefore(line, at);
    }
    if (this.body.contains(focused) && focused !== document.activeElement) focused.focus({ preventScroll: true });
  }
}

// Where a list stands, and the way to its other pages.
export class Pager {
  constructor(limit, turn) {
    this.limit = limit;
    this.start = 0;
    this.said = h("span", { "aria-live": "polite" });
    this.back = h("button", { type: "button", class: "small", onclick: () => turn(Math.max(0, this.start - limit)) }, "‹ Before");
    this.on = h("button", { type: "button", class: "small", onclick: () => turn(this.start + limit) }, "Next ›");
    this.element = h("div", { class: "pager" }, this.said, this.back, this.on);
  }

  update(start, shown, total) {
    this.start = start;
    const text = total ? `${start + 1}–${start + shown} of ${total}` : "";
    if (this.said.textContent !== text) this.said.textContent = text;
    this.back.disabled = start === 0;
    this.on.disabled = start + shown >= total;
    this.element.classList.toggle("hidden", total <= this.limit && start === 0);
  }
}

// A list that the page has whole: it is filtered and turned over here, and where it stands is in the address.
export function turned(at, path, table, { text, label, hint, limit = 100 }) {
  let rows = [], isTyping = false; // what is typed is one step, not one for each letter
  const asked = { filter: at.query.get("filter") ?? "", start: Math.max(0, Number(at.query.get("start")) || 0) };
  const turn = (changes, isStep = true) => { Object.assign(asked, changes); remember(path, { filter: asked.filter, start: asked.start || "" }, isStep); show(); };
  const pager = new Pager(limit, (start) => turn({ start }));
  const search = h("input", { type: "search", placeholder: hint, "aria-label": label, value: asked.filter, onfocus: () => { isTyping = false; }, oninput: later(() => { turn({ filter: search.value, start: 0 }, !isTyping); isTyping = true; }, 150) });
  const show = () => {
    const wanted = asked.filter.toLowerCase(), found = wanted ? rows.filter((row) => text(row).toLowerCase().includes(wanted)) : rows;
    const start = asked.start < found.length ? asked.start : Math.max(0, Math.ceil(found.length / limit) - 1) * limit;
    const shown = found.slice(start, start + limit);
    table.update(shown);
    pager.update(start, shown.length, found.length);
  };
  return { search, element: h("div", {}, table.element, pager.element), update(found) { rows = found; show(); } };
}
