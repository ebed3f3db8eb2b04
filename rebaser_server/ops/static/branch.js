// Of a branch: what it and head both changed, its edits and their effects, sorted and searched here;
// and applying it, as it was shown.

import { act, includes, may } from "./actions.js";
import { $, count, text } from "./cells.js";
import { SHOWN, button, element, fill } from "./rows.js";

const sorted = { edits: { key: "name", down: false }, effects: { key: "name", down: false } };
let difference = null;
let latest = ""; // the difference as it came
let page = null; // `about`, `read`, `value` and `refresh` of the page that shows the branch

const NUMBER = /^-?[0-9.e+-]+$/i;
const by = (head, branch) => (NUMBER.test(head) && NUMBER.test(branch) ? Number(branch) - Number(head) : null);

const signed = (number) => (number === null ? "" : (number > 0 ? "+" : "") + String(Number(number.toPrecision(12))));

const compare = new Intl.Collator("en", { numeric: true }).compare;

// Numbers by size, and before texts. The rows come in the order of their names.
function inOrder(rows, { key, down }) {
  if (key === "name") return down ? rows.toReversed() : rows;
  const known = rows.map((row) => {
    const its = (key === "by" ? by(row.head, row.branch) : key === "note" ? note(row) : row[key]) ?? "";
    return { row, its: String(its), number: its === "" ? NaN : Number(its) };
  });
  known.sort((a, b) => {
    const [one, other] = [Number.isNaN(a.number), Number.isNaN(b.number)];
    return one && other ? compare(a.its, b.its) : one - other || a.number - b.number;
  });
  if (down) known.reverse();
  return known.map(({ row }) => row);
}

const note = (row) => (row.both ? `head changed it, too; it was ${row.base || "not there"}` : "");

const named = (row) => (row.what === "function" ? row.name : page.value(row));

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
  list("edits", difference.edits, (row) => [named(row), row.what, row.head, row.branch, note(row)], "The branch changes nothing.");
  list("effects", difference.effects, (row) => [page.value(row), row.head, row.branch, signed(by(row.head, row.branch))], "No computed value differs.");
}

// What head changed, too: the branch's counts unless it takes head's, or a third one.
function conflicts(isOpen) {
  const both = difference.edits.filter((row) => row.both);
  $("conflictpart").hidden = !both.length;
  fill("conflicts", both.map((row) => {
    const name = row.name ?? row.id;
    const choices = [];
    if (isOpen && may("take-theirs"))
      choices.push(button("Take theirs", () => doing("take-theirs", { id: row.id }), { class: "do", "aria-label": `Take theirs of ${name}`, "data-focus": `theirs ${row.id}` }));
    if (isOpen && may("set-value") && row.what === "value")
      choices.push(button("Another value", () => doing("set-value", { id: row.id }, { question: `What shall ${name} be in the branch?`, field: "JSON", key: "text" }),
        { class: "do", "aria-label": `Another value of ${name}`, "data-focus": `value ${row.id}` }));
    return [named(row), row.base || "not there", row.head || "removed", element("strong", row.branch || "removed"), choices];
  }), "Nothing.");
}

async function doing(action, more, how) {
  if (await act(action, { ...Object.fromEntries(page.about), ...more }, how)) page.refresh();
}

// Reads the difference and shows it; `known` is the record of the branch.
export async function showBranch(its, known) {
  page = its;
  const answer = await page.read("difference", {}, { text: true });
  const isOpen = known.standing === "open";
  $("apply").hidden = !(isOpen && may("apply"));
  $("mayapply").hidden = !isOpen || includes("approver");
  if (answer === latest) return;
  latest = answer;
  const found = JSON.parse(answer);
  $("branch").hidden = false;
  if (found.problem) {
    $("apply").hidden = true;
    return text("digest", found.problem);
  }
  difference = { digest: found.digest, edits: found.changes, effects: found.computed };
  text("digest", `${count(difference.edits.length)} edits, ${count(difference.effects.length)} computed values differ; digest ${found.digest}`);
  $("export").setAttribute("href", `change-set/effects.csv?${page.about}`);
  conflicts(isOpen);
  changes();
}

$("apply").onclick = () => doing("apply", { digest: difference.digest }, {
  question: `Apply ${count(difference.edits.length)} edits to head? ${count(difference.effects.length)} computed values differ. If anything changes the difference meanwhile, nothing is applied. Digest ${difference.digest}` });

for (const id of ["edits", "effects"])
  for (const head of $(id).parentElement.tHead.querySelectorAll("button"))
    head.onclick = () => {
      const { key } = head.dataset;
      sorted[id] = { key, down: sorted[id].key === key && !sorted[id].down };
      changes(id);
    };

let waiting = 0;
$("searchchanges").oninput = () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => difference && changes(), 200);
};
