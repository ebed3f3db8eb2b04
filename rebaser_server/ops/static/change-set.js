// The page of one change set: its values, why one is what it is, its commits. It reads when it is
// opened, when a person asks, when it is come back to, and again while an update is due.

import { act, identify, includes, may } from "./actions.js";
import { showBranch } from "./branch.js";
import { $, clock, count, text, visible } from "./cells.js";
import { button, fill, lines } from "./rows.js";

const PAUSE = 200; // milliseconds without a key until a search begins
const AGAIN = 1000; // milliseconds until it reads again while an update is due
const about = new URLSearchParams();
const asked = new URLSearchParams(location.search);
for (const name of ["workspace", "changeSet"]) about.set(name, asked.get(name) ?? "");

async function read(what, more = {}, { text = false } = {}) {
  const answer = await fetch(`change-set/${what}?${new URLSearchParams([...about, ...Object.entries(more)])}`);
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return text ? answer.text() : answer.json();
}

// A cell that shows a value when it is pressed.
function value({ id, name }) {
  return button(name ?? id, () => show(id, true), { title: id });
}

let isDue = false;
async function values() {
  const found = await read("values", { search: $("search").value });
  isDue = found.due;
  text("found", `${count(found.count)} of ${count(found.inAll)} values, as of commit ${found.commit}${found.due ? "; an update is due" : ""}`);
  fill("values", found.values.map((each) => [value(each), each.text, each.status, each.func ?? ""]), "No value has that name.", found.count);
}

const WORDS = { definition: "defined as", value: "set to", inputs: "computed as", input: "lost an input, now", function: "function", removal: "removed" };

let chosen = null;
async function show(id, goThere) {
  chosen = id;
  const [one, why] = await Promise.all([read("value", { id }), read("why", { id })]);
  if (chosen !== id) return;
  $("chosen").hidden = false;
  if (one.problem) return text("h-chosen", one.problem);
  text("h-chosen", `${one.name ?? one.id}: ${one.status}`);
  text("text", one.message === null ? one.text : "no value");
  lines("message", one.message ?? "");
  $("set").hidden = !(canSet && one.func === null);
  $("set").onclick = () => doing("set-value", { id }, { question: `What shall ${one.name ?? id} be in this branch?`, field: "JSON", key: "text" });
  text("func", one.func === null ? `a source; id ${one.id}` : `computed by ${one.func}${one.runtime ? ` (${one.runtime}: ${one.code})` : ", a function that does not exist"}; id ${one.id}`);
  const now = new Date().toISOString();
  fill("why", why.edits.flatMap((edit) => edit.changes.map((change, place) => [
    place ? "" : edit.changeSetId === about.get("changeSet") ? String(edit.commit) : `${edit.commit} of ${edit.changeSetId}`,
    place ? "" : clock(edit.time, now), place ? "" : edit.author ?? "",
    `${change.path[0]} ${WORDS[change.what] ?? change.what} ${change.after ?? ""}${["value", "input"].includes(change.what) ? ` (was ${change.before})` : ""}`,
    change.path.join(" → ")])), why.error ?? "Nothing that is kept made it.");
  const notes = why.failed.map((each) => `${each.path.join(" → ")} failed: ${each.message}`);
  if (why.waits) notes.push(`an update is ${why.waits.update ? "under way" : "due"}${why.waits.commit ? ` since commit ${why.waits.commit}, ${clock(why.waits.since, now)}` : ""}`);
  if (why.older) notes.push(`${count(why.older)} of the definitions are older, at least in part, than the commits that are kept`);
  text("whynot", notes.join("; "));
  fill("inputs", one.inputs.map((each) => [each.argument, value(each), each.text, each.status]), "It has none.", one.inputCount);
  fill("dependents", one.dependents.map((each) => [value(each), each.text, each.status]), "Nothing.", one.dependentCount);
  if (goThere) $("chosen").focus();
}

async function log() {
  const { commits } = await read("log");
  const now = new Date().toISOString();
  fill("log", commits.map((each) => [String(each.commit), clock(each.time, now), each.author ?? "",
    each.computed ? "results of an update" : each.updates ? Object.entries(each.updates).map(([kind, many]) => `${many} ${kind}`).join(", ") : "a large batch",
    each.message ? `${each.outcome}: ${each.message}` : each.outcome,
    canRevert && each.outcome === "applied" && !each.computed
      ? button("Revert", () => doing("revert", { commit: each.commit }, { question: `Undo what commit ${each.commit} changed, by a new commit?` }),
        { class: "do", "aria-label": `Revert commit ${each.commit}`, "data-focus": `revert ${each.commit}` }) : ""]), "No commit is kept.");
}

async function doing(action, more, how) {
  if (await act(action, { ...Object.fromEntries(about), ...more }, how)) refresh();
}

let kind = null;
let canSet = false;
let canRevert = false;
let later = 0;
async function refresh() {
  clearTimeout(later);
  try {
    const known = await read("about");
    kind = known.kind ?? null;
    const name = known.name ? `${known.workspace} / ${known.name}` : `${about.get("workspace")} ${about.get("changeSet")}`;
    text("title", name);
    document.title = `${visible(name)} – Rebaser`;
    text("about", known.name ? `${known.kind}, ${known.standing}; created ${known.createdAt}${known.by ? ` by ${known.by}` : ""}${known.problem ? `; ${known.problem}` : ""}; id ${about.get("changeSet")}` : "not registered");
    const isOpen = known.standing === "open";
    canSet = kind === "branch" && isOpen && may("set-value");
    canRevert = isOpen && (kind === "branch" ? may("revert") : includes("approver"));
    const parts = [values(), log()];
    if (kind === "branch") parts.push(showBranch({ about, read, value, refresh }, known));
    if (chosen) parts.push(show(chosen, false));
    await Promise.all(parts);
    $("state").dataset.tone = "good";
    text("state", `read at ${new Date().toLocaleTimeString()}`);
    if (isDue) later = setTimeout(() => document.visibilityState === "visible" && !$("ask").open && refresh(), AGAIN);
  } catch (error) {
    $("state").dataset.tone = "bad";
    text("state", error.message);
  }
}

let waiting = 0;
$("search").oninput = () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => values().catch((error) => text("found", error.message)), PAUSE);
};
document.onvisibilitychange = () => document.visibilityState === "visible" && refresh();
if (asked.get("value")) chosen = asked.get("value");
identify().catch((error) => text("state", error.message)).then(refresh);
