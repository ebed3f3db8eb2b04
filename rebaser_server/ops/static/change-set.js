// The page of one change set: its values, why one is what it is, its commits. It reads when it is
// opened, when a person asks, when it is come back to, and again while an update is due.

import { act, doing, identify, includes, isAsking, may } from "./actions.js";
import { showBranch } from "./branch.js";
import { button, table } from "./cells.js";
import { followDiscussion, showDiscussion } from "./discussion.js";
import { isLookedAt, readData, refreshing, searched } from "./reading.js";
import { $, clock, count, lines, many, text, visible } from "./texts.js";

const AGAIN = 1000; // milliseconds until it reads again while an update is due
const asked = new URLSearchParams(location.search);
const ids = Object.fromEntries(["workspace", "changeSet"].map((name) => [name, asked.get(name) ?? ""]));
const FEWER = ": search for fewer";

const reading = (what, more = {}) => `change-set/${what}?${new URLSearchParams({ ...ids, ...more })}`;
const data = (what, more) => readData(reading(what, more));

// A page of its own for a value.
const addressOf = ({ id }) => `change-set?${new URLSearchParams({ ...ids, value: id })}`;

// A cell that shows a value when it is pressed.
const value = ({ id, name }) => button(name ?? id, () => show(id, true), { title: id });

let isDue = false;
async function values() {
  const found = await data("values", { search: $("search").value });
  isDue = found.due;
  text("found", `${count(found.count)} of ${many(found.inAll, "value")}, as of commit ${found.commit}${found.due ? "; an update is due" : ""}`);
  table("values", found.values.map((each) => ({ key: each.id, cells: [value(each), each.text, each.status, each.func ?? ""] })),
    "No value has that name.", { inAll: found.count, hint: FEWER });
}

const WORDS = { definition: "defined as", value: "set to", inputs: "computed as", input: "lost an input, now", function: "function", removal: "removed" };

let chosen = null;
async function show(id, goThere) {
  chosen = id;
  const [one, why] = await Promise.all([data("value", { id }), data("why", { id })]);
  if (chosen !== id) return;
  $("chosen").hidden = false;
  if (one.problem) return text("h-chosen", one.problem);
  text("h-chosen", `${one.name ?? one.id}: ${one.status}`);
  text("text", one.message === null ? one.text : "no value");
  lines("message", one.message ?? "");
  $("set").hidden = !(canSet && one.func === null);
  $("set").onclick = () => act("set-value", { ...ids, id }, { question: `What shall ${one.name ?? id} be in this branch?`, field: "JSON", key: "text" });
  text("func", one.func === null ? `a source; id ${one.id}` : `computed by ${one.func}${one.runtime ? ` (${one.runtime}: ${one.code})` : ", a function that does not exist"}; id ${one.id}`);
  text("impure", one.impure ? `This function is not pure, found ${clock(one.impure.at)}: value ${one.impure.value} came to ${one.impure.before}, and then to ${one.impure.now} from the same inputs. Mend it, then compute its values again.` : "");
  table("why", why.edits.flatMap((edit) => edit.changes.map((change, place) => [
    place ? "" : edit.changeSetId === ids.changeSet ? String(edit.commit) : `${edit.commit} of ${edit.changeSetId}`,
    place ? "" : clock(edit.time), place ? "" : edit.author ?? "",
    `${change.path[0]} ${WORDS[change.what] ?? change.what} ${change.after ?? ""}${["value", "input"].includes(change.what) ? ` (was ${change.before})` : ""}`,
    change.path.join(" → ")])), why.error ?? "Nothing that is kept made it.");
  const notes = why.failed.map((each) => `${each.path.join(" → ")} failed: ${each.message}`);
  if (why.waits) notes.push(`an update is ${why.waits.update ? "under way" : "due"}${why.waits.commit ? ` since commit ${why.waits.commit}, ${clock(why.waits.since)}` : ""}`);
  if (why.older) notes.push(`${count(why.older)} of the definitions are older, at least in part, than the commits that are kept`);
  text("whynot", notes.join("; "));
  table("inputs", one.inputs.map((each) => [each.argument, value(each), each.text, each.status]), "It has none.", { inAll: one.inputCount });
  table("dependents", one.dependents.map((each) => ({ key: each.id, cells: [value(each), each.text, each.status] })), "Nothing.", { inAll: one.dependentCount });
  if (goThere) $("chosen").focus();
}

// What a commit did.
function done(commit) {
  const parts = [];
  if (commit.merged != null) parts.push(`head's changes up to ${commit.merged}`);
  if (commit.status != null) parts.push(`the change set is ${commit.status === "applying" ? "being applied" : commit.status}`);
  if (commit.computed) parts.push("results of an update");
  else if (commit.updates == null) parts.push("a large batch");
  else parts.push(...Object.entries(commit.updates).map(([kind, many]) => `${many} ${kind}`));
  return parts.join(", ") || "no update";
}

async function log() {
  const { commits } = await data("log");
  table("log", commits.map((each) => ({ key: String(each.commit), cells: [String(each.commit), clock(each.time), each.author ?? "",
    done(each), each.message ? `${each.outcome}: ${each.message}` : each.outcome,
    canRevert && each.outcome === "applied" && !each.computed && (!each.updates || Object.keys(each.updates).length)
      ? doing("revert", "Revert", `commit ${each.commit}`, { ...ids, commit: each.commit }, { question: `Undo what commit ${each.commit} changed, by a new commit?` }) : ""] })), "No commit is kept.");
}

let canSet = false;
let canRevert = false;
let later = 0;
const refresh = refreshing(async () => {
  clearTimeout(later);
  const known = await data("about");
  const name = known.name ? `${known.workspace} / ${known.name}` : `${ids.workspace} ${ids.changeSet}`;
  text("title", name);
  document.title = `${visible(name)} – Rebaser`;
  text("about", known.name ? `${known.kind}, ${known.status}; created ${known.createdAt}${known.by ? ` by ${known.by}` : ""}${known.problem ? `; ${known.problem}` : ""}; id ${ids.changeSet}` : "not registered");
  const isOpen = known.status === "open";
  const isBranch = known.kind === "branch";
  canSet = isBranch && isOpen && may("set-value");
  canRevert = isOpen && (isBranch ? may("revert") : includes("approver"));
  const parts = [values(), log()];
  if (isBranch) parts.push(showBranch({ ids, reading, value, addressOf, open: ({ id }) => show(id, true) }, isOpen));
  if (known.name) parts.push(showDiscussion(reading));
  if (chosen) parts.push(show(chosen, false));
  const isIncomplete = (await Promise.all(parts)).includes(true);
  if (isDue || isIncomplete) later = setTimeout(() => isLookedAt() && !isAsking() && refresh(), AGAIN);
});

searched("search", "found", values);
if (asked.get("value")) chosen = asked.get("value");
await identify(refresh);
followDiscussion(ids, reading);
refresh();
