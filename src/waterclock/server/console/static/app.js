// The frame: navigation, the page that the address names, one connection to the node, who is logged in.
import { get, hasCredential, keep, live, onLogin, plain, query } from "./api.js";
import { h, put, toast } from "./dom.js";
import { span } from "./format.js";
import { redrawAll } from "./plot.js";
import { is, may, who } from "./rights.js";
// All pages come at first: one that is chosen while the node is away is there as well.
import { audit } from "./audit.js";
import { cluster } from "./cluster.js";
import { deadLetters } from "./dead_letters.js";
import { groups } from "./groups.js";
import { jobs } from "./jobs.js";
import { overview } from "./overview.js";
import { schedule } from "./schedule.js";
import { streams } from "./streams.js";
import { topics } from "./topics.js";

const app = document.getElementById("app");
const PAGES = [
  ["", "Overview", overview],
  ["topics", "Topics", topics],
  ["schedule", "Schedule", schedule],
  ["groups", "Groups", groups],
  ["dead-letters", "Dead letters", deadLetters],
  ["streams", "Streams", streams],
  ["cluster", "Cluster", cluster, () => may("read")],
  ["jobs", "Jobs", jobs],
  ["audit", "Audit", audit, () => who().auditTopic && may("read", { topic: "__audit" })],
];

// Where the reader is: the path after the hash, and what is asked of the page.
function place() {
  const [path, asked] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(plain), query: new URLSearchParams(asked ?? "") };
}

let page = null;
let stopLive = null;
let livePath = "";
let last = null, lastPath = "";
const frame = {};

function build() {
  const links = PAGES.filter(([, , , shown]) => !shown || shown()).map(([path, title]) => {
    const link = h("a", { href: `#/${path}` }, title);
    link.dataset.path = path;
    return link;
  });
  frame.links = links;
  frame.dot = h("i", { class: "dot" });
  frame.state = h("span", {}, "connecting");
  frame.away = h("div", { class: "away hidden", role: "status" }, "The node does not answer. What is shown is what was known last; the console connects again by itself.");
  frame.main = h("main", { id: "main", tabindex: "-1" });
  frame.up = h("span");
  frame.version = h("span", {}, `v${who().version}`);
  const theme = h("button", { type: "button", class: "small", onclick: turnTheme }, "Light / dark");
  const leave = h("button", { type: "button", class: "small", onclick: () => { keep(""); login(); } }, "Log out");
  app.className = "";
  app.replaceChildren(
    h("header", { class: "side" },
      h("div", { class: "top" },
        h("a", { class: "brand", href: "#/" }, h("img", { src: "/console/icon.svg", alt: "" }), "Waterclock"),
        h("div", { class: "where" }, h("span", { class: "state" }, frame.dot, frame.state), h("div", {}, who().node))),
      h("nav", { "aria-label": "Pages" }, h("ul", {}, links.map((link) => h("li", {}, link)))),
      h("div", { class: "foot" },
        who().isSecure ? h("div", { class: "row" }, h("span", { title: "who is logged in" }, who().principal), leave) : null,
        h("div", {}, frame.version, " · up ", frame.up),
        h("div", { class: "row" }, h("a", { href: "/docs" }, "API"), theme))),
    frame.main);
  frame.main.append(frame.away);
}

function turnTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("waterclock.theme", root.dataset.theme);
  redrawAll();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

function connected(state) {
  const words = { live: "live", away: "not connected", login: "logged out", forbidden: "not allowed" };
  put(frame.state, words[state]);
  frame.dot.className = `dot ${state === "live" ? (last?.node && !last.node.isReady ? "bad" : "good") : "warn"}`;
  frame.away.classList.toggle("hidden", state !== "away");
  if (state === "away") frame.wasAway = true;
  else if (state === "live" && frame.wasAway) { frame.wasAway = false; again().then((isBuilt) => isBuilt || page?.back?.()); }
}

// A node that was away may be another release by now, and what is refused may be what was allowed when the
// page was built: who looks is asked again, and all is built anew if that makes a difference. Says if it was.
const shape = ({ version, startedMs, nowMs, grpcPort, ...rest }) => JSON.stringify(rest);
let asking = null;
const again = () => (asking ??= renew().catch(() => false).finally(() => { asking = null; }));
async function renew() {
  const found = await get("/console/session"), before = shape(who());
  if (!page) return false;
  is(found);
  put(frame.version, `v${found.version}`);
  if (shape(found) === before) return false;
  stopLive?.();
  stopLive = null;
  build();
  show();
  toast("What you may see or do here has changed");
  return true;
}

// A page that nobody sees lets go of its connection: a browser has six to a node for all its tabs. What
// it asks for beside that rests too, and comes anew when it is seen again (`every`, `rest` and `seen`).
function follow() {
  if (document.hidden) {
    stopLive?.();
    stopLive = null;
    page?.rest?.();
    return;
  }
  const path = query("/console/live", page?.live?.() ?? { view: "overview" });
  if (stopLive && path === livePath) return;
  stopLive?.();
  livePath = path;
  stopLive = live(path, (snapshot) => {
    snapshot.aheadMs = snapshot.nowMs - Date.now();
    [last, lastPath] = [snapshot, path];
    put(frame.up, span(snapshot.nowMs - who().startedMs));
    page?.update?.(snapshot);
  }, connected);
}

// What the navigation does not list, but an address that was shared names.
const nothing = (title) => ({ element: [h("div", { class: "head" }, h("h1", {}, title)), h("p", { class: "notice" }, "There is nothing here that you may see.")] });

function show() {
  const at = place();
  const [path, title, open, shown] = PAGES.find(([each]) => each === (at.path[0] ?? "")) ?? PAGES[0];
  page?.close?.();
  document.querySelectorAll("dialog").forEach((box) => box.remove()); // not closed: that would say so in the address of the next page
  page = shown && !shown() ? nothing(title) : open({ ...at, follow });
  frame.links.forEach((link) => (link.dataset.path === path ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current")));
  if (matchMedia("(max-width: 760px)").matches) frame.links.find((link) => link.dataset.path === path)?.scrollIntoView({ block: "nearest", inline: "center" });
  document.title = `${page.title ?? title} · ${who().node} · Waterclock`;
  frame.main.replaceChildren(frame.away, ...[page.element].flat());
  if (frame.wasShown) { frame.main.focus({ preventScroll: true }); scrollTo(0, 0); }
  frame.wasShown = true;
  follow();
  if (last) page.update?.(lastPath === livePath ? last : { nowMs: last.nowMs, aheadMs: last.aheadMs, node: last.node }); // lists are of each view
}

function login(said = "") {
  stopLive?.();
  stopLive = null;
  page?.close?.();
  page = null;
  const wrong = h("p", { class: said ? "notice bad" : "notice bad hidden", role: "alert" }, said);
  const field = h("textarea", { id: "credential", name: "credential", required: true, rows: "4", autocomplete: "off", spellcheck: "false", "aria-describedby": "credential-help" });
  const form = h("form", { class: "panel" },
    h("h1", {}, "Waterclock"),
    h("p", { class: "dim" }, "This node asks who you are."),
    h("label", { class: "field" }, h("span", {}, "Credential"), field),
    h("p", { class: "dim", id: "credential-help" }, "The line that ", h("code", {}, "waterclock secure add NAME"), " printed. It is kept until this tab is closed, and goes to this node only."),
    wrong, h("button", { class: "main", type: "submit" }, "Log in"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    keep(field.value);
    try {
      await begin();
    } catch (error) {
      keep("");
      wrong.textContent = error.message;
      wrong.classList.remove("hidden");
    }
  });
  app.className = "alone";
  document.title = "Log in · Waterclock";
  app.replaceChildren(h("main", { class: "login", id: "main" }, form));
  field.focus();
}

async function begin() {
  is(await get("/console/session"));
  last = null;
  build();
  show();
}

// The part behind the # names a page here, so the link to the content is not followed but done.
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); document.getElementById("main")?.focus(); });
document.addEventListener("visibilitychange", () => {
  if (!page) return;
  follow();
  if (!document.hidden) { page.seen?.(); again(); }
});
addEventListener("hashchange", () => { if (page) show(); });
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name !== "AbortError") toast(event.reason?.message ?? "Something went wrong", true);
});

async function start() {
  onLogin.refused = () => { if (page) again(); };
  onLogin.needed = () => {
    if (page) { keep(""); login("The credential is not good any more."); }
  };
  for (;;) {
    try {
      await begin();
      return;
    } catch (error) {
      if (error.status === 401) { const had = hasCredential(); keep(""); login(had ? error.message : ""); return; }
      app.className = "alone";
      app.replaceChildren(h("main", { class: "login", id: "main" }, h("div", { class: "panel", role: "status" }, h("h1", {}, "Waterclock"), h("p", {}, error.message || "The node does not answer."), h("p", { class: "dim" }, "The console asks again by itself."))));
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}
start();
