// What the principal may do, as `security/rights.py` has it: buttons for the rest are not shown.
// The node decides all the same.

let session = { rights: [], isAdmin: false };
export const is = (found) => { session = found; };
export const who = () => session;

function matches(glob, name) {
  const text = glob.split("*").map((each) => each.replace(/[\\^$.|?+()[\]{}]/g, "\\$&")).join("[^]*");
  return new RegExp(`^${text}$`).test(name);
}

function covers(right, { topic, stream, group }) {
  if (topic === undefined && stream === undefined) {
    if (right.what !== "any" || right.glob !== "*") return false;
  } else {
    if (topic !== undefined && (right.what === "stream" || (topic.startsWith("__") && !right.glob.startsWith("__")) || !matches(right.glob, topic))) return false;
    if (stream !== undefined && (right.what === "topic" || !matches(right.glob, stream))) return false;
  }
  if (topic === undefined && stream !== undefined) return true; // streams have no groups
  return group === undefined ? right.groupGlob === "*" : matches(right.groupGlob, group);
}

// Lists show what there is some right on, of whatever kind and to whichever group.
export const sees = (about) => session.isAdmin || session.rights.some((right) => covers({ ...right, groupGlob: "*" }, about));

// Whether there is anything of a kind, topic or stream, that it may do this to.
export const mayAny = (kind, what) => session.isAdmin || session.rights.some((right) => right.kind === kind && (right.what === "any" || right.what === what));

export function may(kind, about = {}) {
  return session.isAdmin || session.rights.some((right) => right.kind === kind && covers(right, about));
}

// To the node's own topics nobody publishes, whatever they may do.
export const mayPublish = (topic) => !topic.startsWith("__") && may("publish", { topic });
