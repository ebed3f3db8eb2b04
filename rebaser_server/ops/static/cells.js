// Tables and their cells. A refresh touches only what differs from what is shown, and a row keeps its
// elements for as long as it has the same key: it costs little, and the focus stays where it is.

import { $, called, count, pageOf, put, short, visible } from "./texts.js";

const LONGEST = 24; // characters of a name in a cell
const SHOWN = 100; // rows of a table, unless it says otherwise

// A cell is a text, an element that is described like these, or a list of such elements.
// An attribute of null is left out.
export const element = (tag, text, attributes = {}) => ({ tag, text, attributes });
export const button = (text, press, attributes = {}) => ({ tag: "button", text, press, attributes: { type: "button", ...attributes } });

// A bar: `done` of `all`.
export const bar = (done, all, what) =>
  element("progress", "", { max: String(Math.max(1, all)), value: done ? String(done) : null, "aria-label": what });

// Names a change set, and leads to its page; a button if there is more to be shown of it.
export function named(row, choose) {
  const ids = row.workspace ? `${short(row.workspace)}/${short(row.changeSet)}` : row.changeSet;
  const name = called(row) ? `${called(row, LONGEST)} ${short(row.changeSet)}` : ids;
  const title = `${called(row)} ${row.workspace} ${row.changeSet}`.trim();
  if (choose) return button(name, () => choose(row), { title, "aria-label": `Show ${title}` });
  return row.workspace ? element("a", name, { title, href: pageOf(row) }) : element("code", name, { title });
}

function dress(element, { text, attributes, press }) {
  put(element, text);
  for (const [name, its] of Object.entries(attributes)) {
    if (its === null) element.removeAttribute(name);
    else if (element.getAttribute(name) !== visible(its)) element.setAttribute(name, visible(its));
  }
  element.onclick = press ?? null;
}

function fill(td, cell) {
  if (typeof cell === "string") return put(td, cell);
  const parts = [cell].flat();
  const fits = parts.length === td.childNodes.length && parts.every(({ tag }, place) => td.childNodes[place].localName === tag);
  if (!fits) td.replaceChildren(...parts.map(({ tag }) => document.createElement(tag)));
  parts.forEach((part, place) => dress(td.children[place], part));
}

const NOTE = "note"; // the key of the row that says what is left out

function made(key, heads) {
  const line = document.createElement("tr");
  line.dataset.key = key;
  if (key === NOTE) Object.assign(line.insertCell(), { className: "none", colSpan: heads.length });
  else for (const head of heads) line.insertCell().className = head.className;
  return line;
}

// Rows are `{ key, cells }`, or only their cells, which then are known by their place. If there are
// none, `nothing` is said; if there are more than are shown, how many, and `hint`.
export function table(id, rows, nothing, { most = SHOWN, inAll = rows.length, hint = "" } = {}) {
  const body = $(id);
  const { tHead } = body.parentElement;
  const heads = tHead.rows[0].cells;
  tHead.hidden = !rows.length;
  const shown = rows.slice(0, most).map((row, place) => (row.key ? row : { key: String(place), cells: row.cells ?? row }));
  if (!rows.length) shown.push({ key: NOTE, cells: [nothing] });
  else if (inAll > shown.length) shown.push({ key: NOTE, cells: [`and ${count(inAll - shown.length)} more${hint}`] });
  const focused = document.activeElement;
  const wanted = new Set(shown.map(({ key }) => key));
  const known = new Map();
  for (const line of [...body.rows]) {
    const { key } = line.dataset;
    if (!wanted.has(key) || known.has(key)) line.remove();
    else known.set(key, line);
  }
  let next = body.firstElementChild;
  for (const { key, cells } of shown) {
    const line = known.get(key) ?? made(key, heads);
    known.delete(key);
    if (line === next) next = line.nextElementSibling;
    else body.insertBefore(line, next);
    cells.forEach((cell, column) => fill(line.cells[column], cell));
  }
  if (focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
}
