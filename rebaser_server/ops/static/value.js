// One value, in a panel beside the others: what it is, what is wrong with it, what it is computed from
// and why it is what it is.

import { act, may } from "./actions.js";
import { amount, copies, element, fill, table } from "./cells.js";
import { edge, svg } from "./drawing.js";
import { $, clock, count, lined, put, text, visible } from "./texts.js";
import { statusOf, valueOf } from "./values.js";

const WORDS = { definition: "defined as", value: "set to", inputs: "computed as", input: "lost an input, now", function: "is a function in", removal: "removed" };
const BOX = { width: 112, height: 24, across: 152, down: 30, edge: 2 };
const NUMBERS = /^(tiny|small|big)?int|^(decimal|double|float)/; // types of columns whose cells are numbers
const NEAR = 5; // inputs and dependents that are drawn

const asked = {}; // for how many inputs and dependents the page asks
let chosen = null; // the id of the value
let before = null; // what had the focus before the panel was opened

// The address says which value is chosen: for a reload, for others, and to come back to.
function choose(id) {
  chosen = id;
  const url = new URL(location.href);
  if (url.searchParams.get("value") === id) return;
  if (id) url.searchParams.set("value", id);
  else url.searchParams.delete("value");
  history.pushState(null, "", url);
}

export function chooseValue(page, id) {
  if (!$("chosen").contains(document.activeElement)) before = document.activeElement;
  if (id !== chosen) delete asked.rows;
  choose(id);
  showChosen(page, true).catch((error) => text("state", error.message));
}

function close() {
  choose(null);
  $("chosen").hidden = true;
  $("panelled").classList.remove("open");
  if (before?.isConnected) before.focus({ preventScroll: true });
}

// Opens and closes the value as the address says, now and after each step back or forward.
export function followAddress(page) {
  const addressed = () => new URLSearchParams(location.search).get("value");
  chosen = addressed();
  window.onpopstate = () => {
    const id = addressed();
    if (id && id !== chosen) chooseValue(page, id);
    else if (!id && chosen) close();
  };
}

$("close").onclick = close;
$("chosen").onkeydown = ({ key }) => {
  if (key === "Escape") close();
};
copies($("copyid"), () => chosen);

export async function showChosen(page, goThere = false) {
  const id = chosen;
  if (!id) return;
  const [one, why] = await Promise.all([page.data("value", { id, ...asked }), page.data("why", { id })]);
  if (chosen !== id) return;
  $("chosen").hidden = false;
  $("panelled").classList.add("open");
  $("chosen").classList.toggle("missing", Boolean(one.problem));
  $("chosen").setAttribute("aria-label", visible(one.problem ?? `${one.name ?? one.id}: ${one.status}`));
  $("chosen").removeAttribute("aria-labelledby");
  if (one.problem) return text("h-chosen", one.problem);
  put($("h-chosen"), one.name ?? one.id);
  fill($("chosenstatus"), statusOf(one.status));
  $("text").hidden = one.message !== null;
  text("text", one.message === null ? one.text : "no value");
  $("message").textContent = lined(one.message ?? "");
  firstRows(one.table);
  $("set").hidden = !(page.canSet && one.func === null);
  $("set").onclick = () => act("set-value", { ...page.ids, id }, { question: `What shall ${one.name ?? id} be in this branch?`, yes: "Set", field: "JSON", key: "text" });
  $("again").hidden = one.func === null || !may("recompute");
  $("again").onclick = () => act("recompute", { ...page.ids, id });
  text("func", one.func === null ? "a source, which people set" : `computed by ${one.func}${one.runtime ? ` (${one.runtime})` : ", a function that does not exist"}`);
  showCode(one);
  text("impure", one.impure ? `This function is not pure, found ${clock(one.impure.at)}: ${one.impure.name ?? "one of its values"} came to ${one.impure.before}, and then to ${one.impure.now} from the same inputs. Mend it, then compute its values again.` : "");
  near(page, one);
  reasons(page, why);
  const more = ({ length }) => page.more(length, asked, () => showChosen(page));
  table("inputs", one.inputs.map((each) => [each.argument, valueOf(page, each), amount(each.text), statusOf(each.status)]), "It has none.", { most: Infinity, inAll: one.inputCount, more: more(one.inputs) });
  table("dependents", one.dependents.map((each) => ({ key: each.id, cells: [valueOf(page, each), amount(each.text), statusOf(each.status)] })), "Nothing.", { most: Infinity, inAll: one.dependentCount, more: more(one.dependents) });
  if (goThere) $("chosen").focus();
}

const TOKENS = /(--[^\n]*)|('(?:[^']|'')*')|\b(select|from|where|group|order|by|having|join|left|right|full|inner|cross|on|using|with|as|union|all|distinct|case|when|then|else|end|and|or|not|in|is|null|between|like|over|partition|limit|values|cast|desc|asc|qualify|exists|except|intersect)\b/gi;
const KINDS = [["i", 1], ["q", 2], ["b", 3]]; // a comment, a text, a word of SQL

// The code of a function, unless its name says it; that of a query with its words marked.
function showCode({ code, func, runtime }) {
  $("code").hidden = !code || code === func || runtime === "builtin";
  if ($("code").hidden || code === $("code").dataset.code) return;
  $("code").dataset.code = code;
  const parts = [];
  let end = 0;
  for (const found of runtime === "sql" ? code.matchAll(TOKENS) : []) {
    const part = document.createElement(KINDS.find(([, group]) => found[group])[0]);
    part.textContent = lined(found[0]);
    parts.push(lined(code.slice(end, found.index)), part);
    end = found.index + found[0].length;
  }
  $("code").replaceChildren(...parts, lined(code.slice(end)));
}

function firstRows(shown) {
  $("oftable").hidden = !shown;
  if (!shown) return;
  const from = shown.source ? `, copied from version ${shown.source.version} of ${shown.source.uri}` : "";
  text("tablesize", shown.problem ?? `${count(shown.rows)} ${shown.rows === 1 ? "row" : "rows"}, ${count(shown.size)} bytes${from}`);
  const columns = shown.columns ?? [];
  const rows = (columns[0]?.first ?? []).map((_, row) => columns.map(({ first, type }) => amount(first[row], "", NUMBERS.test(type))));
  heads("firstrows", columns.map(({ name, type, nullable }) => [name, nullable ? type : `${type} not null`]));
  table("firstrows", rows, shown.problem ? "" : "It has none.", { most: Infinity, inAll: shown.rows ?? 0 });
  $("firstrows").parentElement.tHead.hidden = !columns.length;
  const { differing } = shown;
  $("differing").hidden = !differing;
  if (!differing) return;
  text("differs", differing.summary);
  const those = differing.columns ?? [];
  heads("differingrows", [["", ""], ...those.map(([name]) => [name, ""])]);
  table("differingrows", (differing.rows ?? []).map(([word, ...states]) => [word, ...those.map(([name, type]) => sides(states.map((state) => state[name] ?? ""), NUMBERS.test(type)))]), "None is shown.", { most: Infinity });
}

// A cell before and after, or the one that it is.
const sides = ([before, after = before], isNumber) => (before === after ? amount(before, "", isNumber)
  : [amount(before || "-", "span", isNumber), element("span", " → "), amount(after || "-", "strong", isNumber)]);

// Gives a table its columns, each a name and a type.
function heads(id, columns) {
  const [head] = $(id).parentElement.tHead.rows;
  const is = JSON.stringify(columns);
  if (head.dataset.is === is) return;
  head.dataset.is = is;
  head.replaceChildren(...columns.map(([, type]) => Object.assign(document.createElement("th"), { scope: "col", className: NUMBERS.test(type) ? "n" : "" })));
  columns.forEach(([name, type], place) => fill(head.cells[place], [element("div", name), element("div", type, { class: "note" })]));
  $(id).replaceChildren();
}

function reasons(page, why) {
  table("why", why.edits.flatMap((edit) => edit.changes.map((change, place) => [
    place ? "" : edit.changeSetId === page.ids.changeSet ? String(edit.commit) : `${edit.commit} of head`,
    place ? "" : [element("div", clock(edit.time)), ...(edit.author ? [element("div", edit.author)] : [])],
    `${change.path[0]} ${WORDS[change.what] ?? change.what} ${(change.what === "function" ? change.after?.split(":")[0] : change.after) ?? ""}${["value", "input"].includes(change.what) ? ` (was ${change.before})` : ""}`,
    change.path.join(" → ")])), why.error ?? "Nothing that is kept made it.");
  const notes = why.failed.map((each) => `${each.path.join(" → ")} failed: ${each.message}`);
  if (why.waits) notes.push(`an update is ${why.waits.update ? "under way" : "due"}${why.waits.commit ? ` since commit ${why.waits.commit}, ${clock(why.waits.since)}` : ""}`);
  if (why.older) notes.push(`${count(why.older)} of the definitions are older, at least in part, than the commits that are kept`);
  text("whynot", notes.join("; "));
}

// The value between its inputs and its dependents.
function near(page, one) {
  const unique = (rows, inAll) => Object.assign([...new Map(rows.map((each) => [each.id, each])).values()], { left: inAll - rows.length });
  const columns = [unique(one.inputs, one.inputCount), [one], unique(one.dependents, one.dependentCount)].filter((rows) => rows.length);
  const isAlone = columns.length === 1;
  $("near").hidden = $("h-near").hidden = isAlone;
  if (isAlone) return;
  const key = JSON.stringify(columns.map((rows) => [rows.left, rows.map(({ id, name, status }) => [id, name, status])]));
  if ($("near").dataset.drawn === key) return;
  $("near").dataset.drawn = key;
  const tallest = Math.max(...columns.map((rows) => Math.min(NEAR, rows.length) + (rows.length > NEAR ? 1 : 0)));
  const places = columns.map((rows, column) => {
    const shown = Math.min(NEAR, rows.length);
    const top = ((tallest - shown - (rows.length > NEAR ? 1 : 0)) * BOX.down) / 2;
    return rows.slice(0, NEAR).map((each, place) => ({ each, x: BOX.edge + column * BOX.across, y: BOX.edge + top + place * BOX.down }));
  });
  const middle = columns.findIndex((rows) => rows[0] === one);
  const [here] = places[middle];
  const edges = places.flatMap((those, column) => those.filter(({ each }) => each !== one).map((its) => (column < middle ? edge(its, here, BOX) : edge(here, its, BOX))));
  const boxes = places.flat().map(({ each, x, y }) => {
    const name = each.name ?? each.id;
    const box = svg(each === one ? "g" : "a", { class: `box ${each === one ? "here" : ""} ${["failed", "blocked"].includes(each.status) ? "bad" : ""}`, ...(each === one ? {} : { href: page.addressOf(each) }) },
      svg("title", {}, `${name}: ${each.status}`), svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 4 }),
      svg("text", { x: x + 6, y: y + 16 }, name.length > 16 ? `${name.slice(0, 15)}…` : name));
    box.onclick = (event) => {
      if (each === one || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      page.open(each);
    };
    return box;
  });
  const more = places.flatMap((those, column) => (columns[column].length > NEAR
    ? [svg("text", { x: those[0].x, y: those.at(-1).y + BOX.down + 14, class: "more" }, `and ${count(columns[column].length + columns[column].left - NEAR)} more`)] : []));
  const [width, height] = [(columns.length - 1) * BOX.across + BOX.width + 2 * BOX.edge, tallest * BOX.down];
  $("near").replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...edges, ...boxes, ...more));
}
