// Times that the reader types: read by the clocks of the reader's zone, and shown as the one moment
// that they mean before anything is done. The node reads them, so the grammar is that of the API and of
// the command line.
import { get, query } from "./api.js";
import { h, later, put } from "./dom.js";
import { dated, stamp, until } from "./format.js";

const zone = () => Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

// {timeMs, againMs, isRelative, wrong}: the node says wrong of what means nothing.
export const read = (text, isPast = false) => get(query("/console/moment", { text, zone: zone(), isPast: isPast || undefined }));

// The moment with its zone; of what clocks show twice, both.
export function told({ timeMs, againMs }) {
  const said = `${dated(timeMs)} ${zone()}, ${until(timeMs, Date.now())}`;
  return againMs ? `${said}. Clocks show this twice: for the second write ${stamp(againMs)}` : said;
}

// As it is typed: without an offset, unless the clocks show the same twice.
export function typed(ms) {
  const plain = stamp(ms).slice(0, 19).replace("T", " ");
  return new Date(plain.replace(" ", "T")).getTime() === Math.floor(ms / 1000) * 1000 ? plain : stamp(ms);
}

// An input for a time; `changed` is called once it has been read. What is sent has an offset, unless it
// counts from now: then it counts from when it is sent, but for what `isFixed` when it was looked at.
export function momentInput(field, changed) {
  const note = h("small", { class: "dim", id: `read-${field.name}`, "aria-live": "polite" });
  const input = h("input", { name: field.name, required: field.required, placeholder: field.hint, value: field.valueMs ? typed(field.valueMs) : "", autocomplete: "off", spellcheck: "false", "aria-describedby": `read-${field.name}` });
  const empty = { text: "", timeMs: null, wrong: "" };
  let known = field.valueMs ? { text: input.value, timeMs: field.valueMs, wrong: "" } : empty;
  const text = () => input.value.trim();
  const isRead = () => known.text === text();
  const show = () => {
    note.className = known.wrong || known.againMs ? "warn" : "dim";
    put(note, !isRead() ? "…" : known.wrong || (known.timeMs === null ? "" : told(known)));
  };
  const settle = async () => {
    const asked = text();
    if (!isRead()) {
      const found = asked ? await read(asked, field.isPast).catch((error) => ({ timeMs: null, wrong: error.message })) : empty;
      if (asked !== text()) return settle(); // typed on meanwhile
      known = { ...found, text: asked };
      show();
      changed();
    }
    return known.wrong;
  };
  const soon = later(settle, 200);
  input.addEventListener("input", () => { show(); soon(); });
  show();
  const sent = () => (!isRead() || known.timeMs === null ? "" : known.isRelative && !field.isFixed ? known.text : stamp(known.timeMs));
  return { input, note, isRead, settle, sent };
}
