// The page of one change set: its values, why one is what it is, its commits; of a branch also what
// applying it would change. It reads when it is opened, when a person asks, and when it is come back to.

import { $, clock, count, text, visible } from "./cells.js";

const SHOWN = 200; // rows of a table
const PAUSE = 200; // milliseconds without a key until a search begins
const about = new URLSearchParams();
const asked = new URLSearchParams(location.search);
for (const name of ["workspace", "changeSet"]) about.set(name, asked.get(name) ?? "");

async function read(what, more = {}) {
  const answer = await fetch(`change-set/${what}?${new URLSearchParams([...about, ...Object.entries(more)])}`);
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return answer.json();
}

function element(tag, value, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = visible(value);
  for (const [name, its] of Object.entries(attributes)) made.setAttribute(name, its);
  return made;
}

// A cell that shows a value when it is pressed.
function value({ id, name }) {
  const button = element("button", name ?? id, { type: "button", title: id });
  button.onclick = () => show(id, true);
  return button;
}

// Rows are lists of texts and elements; if there are none, `nothing` is said.
function fill(id, rows, nothing, inAll = rows.length) {
  const body = $(id);
  const columns = body.parentElement.tHead.rows[0].cells;
  const lines = rows.slice(0, SHOWN).map((cells) => {
    const line = document.createElement("tr");
    cells.forEach((cell, column) => {
      const td = document.createElement("td");
      td.className = columns[column].className;
      td.append(typeof cell === "string" ? visible(cell) : cell);
      line.append(td);
    });
    return line;
  });
  const more = Math.max(inAll, rows.length) - lines.length;
  const note = !rows.length ? nothing : more > 0 ? `and ${count(more)} more: search for fewer` : "";
  if (note) {
    const line = document.createElement("tr");
    line.append(element("td", note, { class: "none", colspan: columns.length }));
    lines.push(line);
  }
  body.replaceChildren(...lines);
}

async function values() {
  const found = await read("values", { search: $("search").value });
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
  text("message", one.message ?? "");
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
    each.message ? `${each.outcome}: ${each.message}` : each.outcome]), "No commit is kept.");
}

// Of a branch: its edits and their effects, sorted and searched here.
const sorted = { edits: { key: "name", down: false }, effects: { key: "name", down: false } };
let difference = null;

const by = (head, branch) => (/^-?[0-9.e+-]+$/i.test(head) && /^-?[0-9.e+-]+$/i.test(branch) ? Number(branch) - Number(head) : null);

const compare = new Intl.Collator("en", { numeric: true }).compare;

// Numbers by size, and before texts.
function inOrder(rows, { key, down }) {
  const known = rows.map((row) => {
    const its = row[key] ?? "";
    return { row, its: String(its), number: its === "" ? NaN : Number(its) };
  });
  known.sort((a, b) => {
    const [one, other] = [Number.isNaN(a.number), Number.isNaN(b.number)];
    return one && other ? compare(a.its, b.its) : one - other || a.number - b.number;
  });
  if (down) known.reverse();
  return known.map(({ row }) => row);
}

// Shows one of the two tables anew, or both.
function changes(only) {
  const search = $("searchchanges").value.toLowerCase();
  const list = (id, rows, cells, nothing) => {
    if (only && id !== only) return;
    const found = rows.filter((row) => !search || (row.name ?? row.id).toLowerCase().includes(search));
    const shown = inOrder(found, sorted[id]).slice(0, SHOWN);
    fill(id, shown.map(cells), rows.length ? "None has that name." : nothing, found.length);
    for (const head of $(id).parentElement.tHead.rows[0].cells) {
      const isKey = head.firstElementChild.dataset.key === sorted[id].key;
      head.setAttribute("aria-sort", isKey ? (sorted[id].down ? "descending" : "ascending") : "none");
    }
  };
  list("edits", difference.edits, (row) => [row.what === "function" ? row.name : value(row), row.what, row.head, row.branch, row.note], "The branch changes nothing.");
  list("effects", difference.effects, (row) => [value(row), row.head, row.branch, row.by === null ? "" : (row.by > 0 ? "+" : "") + String(Number(row.by.toPrecision(12)))], "No computed value differs.");
}

async function branch() {
  const found = await read("difference");
  $("branch").hidden = false;
  if (found.problem) return text("digest", found.problem);
  difference = {
    edits: found.changes.map((row) => ({ ...row, note: row.both ? `head changed it, too; it was ${row.base || "not there"}` : "" })),
    effects: found.computed.map((row) => ({ ...row, by: by(row.head, row.branch) })),
  };
  text("digest", `${count(difference.edits.length)} edits, ${count(difference.effects.length)} computed values differ; digest ${found.digest}`);
  changes();
}

function sorting(id) {
  for (const button of $(id).parentElement.tHead.querySelectorAll("button"))
    button.onclick = () => {
      const { key } = button.dataset;
      sorted[id] = { key, down: sorted[id].key === key && !sorted[id].down };
      changes(id);
    };
}

let kind = null;
async function refresh() {
  try {
    const known = await read("about");
    kind = known.kind ?? null;
    const name = known.name ? `${known.workspace} / ${known.name}` : `${about.get("workspace")} ${about.get("changeSet")}`;
    text("title", name);
    document.title = `${visible(name)} – Rebaser`;
    text("about", known.name ? `${known.kind}, ${known.standing}; created ${known.createdAt}${known.by ? ` by ${known.by}` : ""}${known.problem ? `; ${known.problem}` : ""}; id ${about.get("changeSet")}` : "not registered");
    const parts = [values(), log()];
    if (kind === "branch") parts.push(branch());
    if (chosen) parts.push(show(chosen, false));
    await Promise.all(parts);
    $("state").dataset.tone = "good";
    text("state", `read at ${new Date().toLocaleTimeString()}`);
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
$("searchchanges").oninput = () => difference && changes();
sorting("edits");
sorting("effects");
document.onvisibilitychange = () => document.visibilityState === "visible" && refresh();
if (asked.get("value")) chosen = asked.get("value");
refresh();
