// Actions: a form, the same as a command and as a request, and what became of it.
import { h, dialog, toast } from "./dom.js";
import { send, written } from "./api.js";
import { momentInput } from "./moments.js";
import { who } from "./rights.js";

const quoted = (text) => (/^[\w./:=@,+-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`);
const shell = (...words) => words.filter((word) => word !== null && word !== undefined && word !== "").map(quoted).join(" ");

// Where the command line reaches this node: at the host at which the reader does.
const here = () => (who().grpcPort ? ["--address", `${location.hostname}:${who().grpcPort}`] : []);
export const waterclock = (...words) => shell("waterclock", ...words, ...here());

// A command, and what clients may have written: behind `--` none of that is taken for an option. A message
// that is `-` alone comes in by a pipe, as commands that publish read it there.
export function command(verb, given, ...options) {
  const piped = ["publish", "send"].includes(verb) && given.at(-1) === "-" ? "echo - | " : "";
  const isOption = given.some((word) => word.startsWith("-"));
  const words = [shell("waterclock", ...verb.split(" ")), ...given.map(quoted)];
  const rest = [shell(...options, ...here())].filter(Boolean);
  return piped + (isOption ? [words[0], ...rest, "--", ...words.slice(1)] : [...words, ...rest]).join(" ");
}

function curl({ method, path, body }) {
  const words = ["curl", ...(method === "POST" && body !== undefined ? [] : method === "GET" ? [] : ["-X", method]), location.origin + path];
  if (body !== undefined) words.push("-d", written(body));
  const line = shell(...words);
  return who().isSecure ? `${line} --cacert ca.pem -H "Authorization: Bearer $WATERCLOCK_CREDENTIAL"` : line;
}

// Browsers lend their clipboard to pages that came over TLS or from this machine; else the text is marked.
async function copy(from) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(from.textContent);
    toast("Copied");
  } else {
    getSelection().selectAllChildren(from);
    toast("It is selected: copy it with the keyboard");
  }
}

function copier(pre, name) {
  return h("button", { type: "button", class: "small", "aria-label": `Copy the ${name} command`, onclick: () => copy(pre) }, "Copy");
}

// The same by other means: shown with every action.
export function same() {
  const [cli, line] = ["waterclock", "curl"].map((name) => h("pre", { tabindex: "0", "aria-label": `The ${name} command` })); // long ones scroll
  const rows = [["waterclock", cli], ["curl", line]].map(([name, pre]) => h("div", { class: "line" }, pre, copier(pre, name)));
  const element = h("details", { class: "same", open: true }, h("summary", {}, "The same on a command line"), ...rows);
  return {
    element,
    show(asked) {
      const { cli: command } = asked;
      rows[0].classList.toggle("hidden", !command);
      cli.textContent = command ?? "";
      line.textContent = curl(asked);
    },
    wait() { cli.textContent = line.textContent = "…"; },
  };
}

function control(field, changed) {
  if (field.kind === "moment") return momentInput(field, changed);
  const common = { name: field.name, required: field.required, placeholder: field.hint };
  if (field.kind === "select") return h("select", common, field.options.map(([value, text]) => h("option", { value, selected: value === field.value }, text)));
  if (field.kind === "area") return h("textarea", { ...common, spellcheck: "false", class: field.isLow ? "low" : undefined }, field.value ?? "");
  if (field.kind === "check") return h("input", { type: "checkbox", name: field.name, checked: field.value ?? false });
  return h("input", { ...common, type: field.kind ?? "text", value: field.value ?? "", min: field.min, step: field.step, list: field.known ? `known-${field.name}` : undefined, autocomplete: "off" });
}

// A field shows no `\r`, and one of a line no line break: what was not touched goes as it came, and of what
// was, lines end as they did.
function textOf(field, made, first) {
  if (field.kind === "select") return made.value;
  if (made.value === first) return field.value ?? "";
  return field.kind === "area" && /\r\n/.test(field.value) ? made.value.replaceAll("\n", "\r\n") : made.value;
}

function labelled(field, made) {
  if (field.kind === "check") return h("label", { class: "field check" }, made, h("span", {}, field.title));
  const known = field.known && h("datalist", { id: `known-${field.name}` }, field.known.map((value) => h("option", { value })));
  return h("label", { class: "field" }, h("span", {}, field.title), made.input ?? made, known, made.note);
}

// A field with `when(values)` is shown only where that holds.
// Of a moment its value is what is to be sent, which is known once it has been read.
// check(values) -> why not; sure(values) -> what it would do, asked before it is done; asked(values) -> {method, path, body, cli}; done(answer) says what became of it.
export function act({ title, note, fields = [], check, sure, asked, label, isDanger = false, done, more }) {
  const controls = fields.map((field) => { const made = control(field, () => { refresh(); more?.update?.(values()); }); return [field, made, made.value]; });
  const labels = controls.map(([field, made]) => labelled(field, made));
  const values = () => Object.fromEntries(controls.map(([field, made, first]) => [field.name, made.sent ? made.sent() : made.type === "checkbox" ? made.checked : textOf(field, made, first)]));
  const moments = () => controls.filter(([field, made]) => made.settle && field.when?.(values()) !== false).map(([, made]) => made);
  const equal = same();
  const wrong = h("p", { class: "notice bad hidden", role: "alert" });
  const submit = h("button", { type: "submit", class: isDanger ? "main danger" : "main" }, label);
  const question = h("p", { class: "notice warn hidden", role: "alert" });
  const form = h("form", {}, note ? h("p", {}, note) : null,
    labels,
    more ?? null, wrong, question, equal.element,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => box.close() }, "Back"), submit));
  let agreed = null; // the request that the question was about
  const doubt = (text = "") => { question.textContent = text; question.classList.toggle("hidden", !text); submit.textContent = text ? `Yes: ${label.toLowerCase()}` : label; if (!text) agreed = null; };
  const say = (text) => { wrong.textContent = text; wrong.classList.toggle("hidden", !text); };
  const refresh = () => { fields.forEach((field, at) => labels[at].classList.toggle("hidden", field.when?.(values()) === false)); if (!moments().every((made) => made.isRead())) return equal.wait(); try { equal.show(asked(values())); } catch (error) { say(error.message); } return undefined; };
  form.addEventListener("input", () => { say(""); doubt(); refresh(); more?.update?.(values()); });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    say("");
    try {
      const unread = (await Promise.all(moments().map((made) => made.settle()))).find(Boolean);
      const refused = unread || check?.(values());
      if (refused) return say(refused);
      const { method, path, body } = asked(values()), request = JSON.stringify([path, body]);
      if (sure && agreed !== request) {
        doubt(await sure(values()));
        agreed = request;
        return undefined;
      }
      const answer = await send(method, path, body);
      box.close();
      toast(done?.(answer, values()) ?? "Done");
    } catch (error) {
      doubt();
      say(error.message);
    } finally {
      submit.disabled = false;
    }
    return undefined;
  });
  refresh();
  const box = dialog(title, form);
  return box;
}
