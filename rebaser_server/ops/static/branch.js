// The review of a branch: what it and head both changed, its effects by name pattern and one by one,
// sorted and searched by a worker; and applying it, as it was shown.

import { act, doing, includes, may } from "./actions.js";
import { amount, button, copies, drawn, element, table } from "./cells.js";
import { svg } from "./drawing.js";
import { drawEffects } from "./effects.js";
import { searched } from "./reading.js";
import { $, ROOT, brief, count, text } from "./texts.js";
import { valueOf } from "./values.js";

const DIGEST = 12; // characters of the digest that are shown

const sorted = { edits: { key: "name", down: false }, effects: { key: "by", down: true } }; // the largest effects first
let difference = null; // the parts of it that are shown
let page = null; // what the page that shows the branch offers: `ids`, `reading`, `addressOf` and `open` one
let isOpen = false;
let family = ""; // the pattern whose effects are listed; all if empty

const worker = new Worker(`${ROOT}difference.js`);
const asked = new Map();
let questions = 0;

// The difference as it is now if `address` is given, else as it was last read.
function parts(address) {
  return new Promise((answer, fail) => {
    questions += 1;
    asked.set(questions, { answer, fail });
    worker.postMessage({ number: questions, address, search: $("searchchanges").value.toLowerCase(), sorted, family });
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

const named = (row) => (row.what === "function" ? row.name : valueOf(page, row));
const failing = (side) => (side === "failed" || side === "blocked");

function list(id, { rows, of, inAll }, cells, nothing) {
  table(id, rows.map((row) => ({ key: row.id, tone: failing(row.branch) && id === "effects" ? "bad" : "", cells: cells(row) })), inAll ? "None has that name." : nothing, { inAll: of, hint: id === "effects" && !family ? ": choose a pattern, or search" : ": search for fewer" });
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
      ...(row.what === "value" ? doing("set-value", "Another value", `of ${name}`, body, { question: `What shall ${name} be in the branch?`, yes: "Set", field: "JSON", key: "text" }) : [])];
    return { key: row.id, cells: [named(row), amount(row.base || "not there"), amount(row.head || "removed"), amount(row.branch || "removed", "strong"), choices] };
  }), "Nothing.", { inAll: of });
}

// How many values moved by how much: bars from the greatest fall to the greatest rise.
function histogram({ bins, zero }) {
  const most = Math.max(...bins);
  const width = 100 / bins.length;
  const bars = bins.map((number, place) => {
    const height = number && Math.max(1.5, (24 * number) / most);
    return `M${place * width} 24v${-height}h${width - 1}v${height}z`;
  });
  const line = zero === null ? [] : [svg("line", { x1: 100 * zero, x2: 100 * zero, y1: 0, y2: 24 })];
  return svg("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, ...line, svg("path", { d: bars.join("") }));
}

const sized = (number) => `${number > 0 ? "+" : number < 0 ? "-" : ""}${brief(Math.abs(number))} %`;

function familyRow({ pattern, title, size, failed, sides, change, largest, moves, tables, rows }) {
  const label = moves && `from ${sized(moves.least)} to ${sized(moves.most)}`;
  return { key: `family ${pattern}`, tone: failed ? "bad" : "", cells: [
    size === 1 ? valueOf(page, largest[0]) : button(title, () => choose(pattern), { class: "more", "aria-expanded": String(family === pattern) }),
    failed ? [element("span", count(size)), element("span", ` ${count(failed)} failed`, { class: "bad" })] : count(size),
    sides[0], tables && size > 1 ? "tables" : sides[1], change,
    size === 1 ? rows ?? "" : largest.map((each) => element("div", each.text)),
    moves && size > 2 ? drawn(JSON.stringify(moves), () => histogram(moves), { class: "histogram", "aria-label": `Moves ${label}`, title: label }) : ""] };
}

function choose(pattern) {
  family = family === pattern ? "" : pattern;
  show().then(() => family && $("effects").parentElement.scrollIntoView({ block: "nearest" })).catch((error) => text("digest", error.message));
}

function families({ rows, of }) {
  $("familypart").hidden = !of;
  table("families", rows.map(familyRow), "Nothing.", { inAll: of });
}

function card(id, number, tone) {
  text(`${id}count`, count(number));
  if ($(`${id}card`)) $(`${id}card`).dataset.tone = number ? tone : "";
}

async function show(address) {
  const found = await parts(address);
  $("branch").hidden = false;
  $("apply").hidden = !isOpen || !may("apply") || Boolean(found.problem);
  $("mayapply").hidden = !isOpen || includes("approver");
  if (found.problem) return text("digest", found.problem);
  difference = found;
  card("edit", found.edits.inAll);
  card("effect", found.effects.inAll);
  card("conflict", found.conflicts.of, "wait");
  card("failing", found.failing.of, "bad");
  text("digest", `${found.unknown ? `${found.unknown}; ` : ""}digest ${found.digest.slice(0, DIGEST)}${found.digest.length > DIGEST ? "…" : ""}`);
  if (found.graph) drawEffects(found.graph, { ...page, choose });
  conflicts(found.conflicts);
  families(found.families);
  list("edits", found.edits, (row) => [named(row), row.what, amount(row.head), amount(row.branch), row.note], "The branch changes nothing.");
  list("effects", found.effects, (row) => [valueOf(page, row), amount(row.head), amount(row.branch), amount(row.by)], "No computed value differs.");
  const caption = `Computed effects${family ? ` of ${family}` : ""}`;
  if ($("effects").parentElement.caption.textContent !== caption) $("effects").parentElement.caption.textContent = caption;
}

// Reads the difference and shows it; whether there is more to be known of it soon.
export async function showBranch(its, open) {
  [page, isOpen] = [its, open];
  $("export").setAttribute("href", `${ROOT}change-set/effects.csv?${new URLSearchParams(page.ids)}`);
  await show(ROOT + page.reading("difference"));
  return isOpen && Boolean(difference?.unknown);
}

// Asks about the difference as it is now, and has that one applied.
async function apply() {
  await show(ROOT + page.reading("difference"));
  const { digest, question, particulars } = difference;
  await act("apply", { ...page.ids, digest }, { question, yes: "Apply to head", particulars: [...particulars, "If anything changes this meanwhile, nothing is applied."] });
}

$("apply").onclick = () => apply().catch((error) => text("digest", error.message));
copies($("copydigest"), () => difference?.digest ?? "");

for (const id of ["edits", "effects"])
  for (const head of $(id).parentElement.tHead.querySelectorAll("button"))
    head.onclick = () => {
      const { key } = head.dataset;
      sorted[id] = { key, down: sorted[id].key === key ? !sorted[id].down : key === "by" };
      show().catch((error) => text("digest", error.message));
    };

searched("searchchanges", "digest", () => difference && show());
