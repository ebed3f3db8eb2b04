// Of a branch: what it and head both changed, its edits and their effects, sorted and searched by a
// worker; and applying it, as it was shown.

import { act, doing, includes, may } from "./actions.js";
import { element, table } from "./cells.js";
import { drawEffects } from "./effects.js";
import { searched } from "./reading.js";
import { $, many, text } from "./texts.js";

const sorted = { edits: { key: "name", down: false }, effects: { key: "name", down: false } };
let difference = null; // the parts of it that are shown
let page = null; // what the page that shows the branch offers: `ids`, `reading`, `value`, `addressOf` and `open` one
let isOpen = false;

const worker = new Worker("difference.js");
const asked = new Map();
let questions = 0;

// The difference as it is now if `address` is given, else as it was last read.
function parts(address) {
  return new Promise((answer, fail) => {
    questions += 1;
    asked.set(questions, { answer, fail });
    worker.postMessage({ number: questions, address, search: $("searchchanges").value.toLowerCase(), sorted });
  });
}

worker.onmessage = ({ data: { number, ...found } }) => {
  const { answer, fail } = asked.get(number);
  asked.delete(number);
  if (found.error) fail(new Error(found.error));
  else answer(found);
};
worker.onerror = () => {
  for (const { fail } of asked.values()) fail(new Error("the difference cannot be shown: its worker did not start"));
  asked.clear();
};

const named = (row) => (row.what === "function" ? row.name : page.value(row));

function list(id, { rows, of, inAll }, cells, nothing) {
  table(id, rows.map((row) => ({ key: row.id, cells: cells(row) })), inAll ? "None has that name." : nothing, { inAll: of, hint: ": search for fewer" });
  for (const head of $(id).parentElement.tHead.rows[0].cells) {
    const isKey = head.firstElementChild.dataset.key === sorted[id].key;
    const order = isKey ? (sorted[id].down ? "descending" : "ascending") : "none";
    if (head.ariaSort !== order) head.ariaSort = order;
  }
}

// What head changed, too: the branch's counts unless it takes head's, or a third one.
function conflicts({ rows, of }) {
  $("conflictpart").hidden = !of;
  table("conflicts", rows.map((row) => {
    const name = row.name ?? row.id;
    const body = { ...page.ids, id: row.id };
    const choices = !isOpen ? [] : [
      ...doing("take-theirs", "Take theirs", `of ${name}`, body),
      ...(row.what === "value" ? doing("set-value", "Another value", `of ${name}`, body, { question: `What shall ${name} be in the branch?`, field: "JSON", key: "text" }) : [])];
    return { key: row.id, cells: [named(row), row.base || "not there", row.head || "removed", element("strong", row.branch || "removed"), choices] };
  }), "Nothing.", { inAll: of });
}

const differing = ({ effects, failing, unknown }) => `${many(effects.inAll, "computed value")} ${effects.inAll === 1 ? "differs" : "differ"}`
  + (failing ? `, ${failing} of them without a value: failed or blocked` : "") + (unknown ? `; ${unknown}` : "");

async function show(address) {
  const found = await parts(address);
  $("branch").hidden = false;
  $("apply").hidden = !(isOpen && may("apply")) || Boolean(found.problem);
  $("mayapply").hidden = !isOpen || includes("approver");
  if (found.problem) return text("digest", found.problem);
  difference = found;
  text("digest", `${many(found.edits.inAll, "edit")}, ${differing(found)}; digest ${found.digest}`);
  if (found.graph) drawEffects(found.graph, page);
  conflicts(found.conflicts);
  list("edits", found.edits, (row) => [named(row), row.what, row.head, row.branch, row.note], "The branch changes nothing.");
  list("effects", found.effects, (row) => [page.value(row), row.head, row.branch, row.by], "No computed value differs.");
}

// Reads the difference and shows it; whether there is more to be known of it soon.
export async function showBranch(its, open) {
  [page, isOpen] = [its, open];
  $("export").setAttribute("href", `change-set/effects.csv?${new URLSearchParams(page.ids)}`);
  await show(page.reading("difference"));
  return isOpen && Boolean(difference?.unknown);
}

// Asks about the difference as it is now, and has that one applied.
async function apply() {
  await show(page.reading("difference"));
  const { digest, edits, conflicts: { of: both } } = difference;
  await act("apply", { ...page.ids, digest }, {
    question: `Apply ${many(edits.inAll, "edit")} to head? ${both ? `Head changed ${both} of the same, too. ` : ""}${differing(difference)}. If anything changes the difference meanwhile, nothing is applied. Digest ${digest}` });
}

$("apply").onclick = () => apply().catch((error) => text("digest", error.message));

for (const id of ["edits", "effects"])
  for (const head of $(id).parentElement.tHead.querySelectorAll("button"))
    head.onclick = () => {
      const { key } = head.dataset;
      sorted[id] = { key, down: sorted[id].key === key && !sorted[id].down };
      show().catch((error) => text("digest", error.message));
    };

searched("searchchanges", "digest", () => difference && show());
