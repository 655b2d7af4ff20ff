// Elements from plain data. Whatever comes from a node becomes text, never markup.

export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

// Sets text only if it differs: what a reader has selected, or focused, stays.
export function put(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

export function panel(title, ...children) {
  const [tools, rest] = Array.isArray(children[0]) ? [children[0], children.slice(1)] : [[], children];
  return h("section", { class: "panel", "aria-label": title }, h("div", { class: "row" }, h("h2", {}, title), h("div", { class: "row" }, ...tools)), ...rest);
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export const unreadable = (what) => h("p", { class: "notice" }, `You may not read this ${what}: only what you may do with it is here.`);

export function empty(text) {
  return h("p", { class: "empty" }, text);
}

// One of several, as buttons.
export function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) => h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => pick(value) }, text));
  const pick = (value) => {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(options[at][0] === value)));
    choose(value);
  };
  return h("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}

export function toast(text, isBad = false) {
  let place = document.querySelector(".toasts");
  if (!place) {
    place = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
    document.body.append(place);
  }
  const made = h("div", { class: isBad ? "toast bad" : "toast" }, text);
  while (place.children.length > 1) place.firstChild.remove(); // two at a time are enough to read
  place.append(made);
  setTimeout(() => made.remove(), isBad ? 9000 : 4000);
}

export function dialog(title, ...children) {
  const box = h("dialog", { "aria-label": title }, h("h2", {}, title), ...children);
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  box.scrollTop = 0; // what has the focus may stand at the end
  return box;
}

// Runs it again and again while somebody sees the page, and at once when it is seen again, but never beside
// itself; returns what ends it.
export function every(ms, run) {
  let timer, isRunning = false;
  const once = async () => {
    if (isRunning) return;
    isRunning = true;
    try { await run(); } finally { isRunning = false; }
  };
  const turn = () => {
    clearInterval(timer);
    if (!document.hidden) timer = setInterval(once, ms);
  };
  const look = () => { turn(); if (!document.hidden) once(); };
  document.addEventListener("visibilitychange", look);
  turn();
  return () => { clearInterval(timer); document.removeEventListener("visibilitychange", look); };
}

// Runs it soon, and once for all that ask meanwhile.
export function soon(run, delay = 50) {
  let timer = null;
  return () => { timer ??= setTimeout(() => { timer = null; run(); }, delay); };
}

export function later(run, delay) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...given), delay);
  };
}
