// Tables and their cells. A refresh touches only what differs from what is shown, and a row keeps its
// elements for as long as it has the same key: it costs little, and the focus stays where it is.

import { $, called, count, figure, nameOf, pageOf, prose, put, visible } from "./texts.js";

const SHOWN = 100; // rows of a table, unless it says otherwise

// A cell is a text, an element that is described like these, or a list of such elements.
// An attribute of null is left out.
export const element = (tag, text, attributes = {}) => ({ tag, text, attributes });
// A value; the pointer shows all digits of a number that is shown without some.
export function amount(said, tag, isNumber = true) {
  const shown = isNumber ? figure(said) : said;
  return tag || shown !== said ? element(tag || "span", shown, { title: shown === said ? null : said }) : said;
}
export const button = (text, press, attributes = {}) => ({ tag: "button", text, press, attributes: { type: "button", ...attributes } });
export const chip = (text, tone = "") => element("span", text, { class: "chip", "data-tone": tone });

// A bar: `done` of `all`.
export const bar = (done, all, what) =>
  element("progress", "", { max: String(Math.max(1, all)), value: done ? String(done) : null, "aria-label": what });

// What `make` draws, which is drawn anew only if `key` is another.
export const drawn = (key, make, attributes) => ({ tag: "span", make, attributes: { role: "img", "data-drawn": key, ...attributes } });

// Names a change set, and leads to its page.
export function named(row) {
  const name = nameOf(row);
  const title = called(row) ? null : `${row.workspace} ${row.changeSet}`;
  return row.workspace ? element("a", name, { title, href: pageOf(row) }) : element("code", name);
}

function dress(element, { text, attributes, press, make, isProse }) {
  if (make) {
    if (element.dataset.drawn !== attributes["data-drawn"]) element.replaceChildren(make());
  } else if (isProse) prose(element, text);
  else put(element, text);
  for (const [name, its] of Object.entries(attributes)) {
    if (its === null) element.removeAttribute(name);
    else if (element.getAttribute(name) !== visible(its)) element.setAttribute(name, visible(its));
  }
  element.onclick = press ?? null;
}

// A text in which what stands between backticks is code.
export const said = (text, attributes = {}) => ({ tag: "span", text, attributes, isProse: true });

// Fills `parent` with the elements that are described, and touches only what differs.
export function fill(parent, cell) {
  if (typeof cell === "string") return put(parent, cell);
  const parts = [cell].flat();
  const fits = parts.length === parent.childNodes.length && parts.every(({ tag }, place) => parent.childNodes[place].localName === tag);
  if (!fits) parent.replaceChildren(...parts.map(({ tag }) => document.createElement(tag)));
  parts.forEach((part, place) => dress(parent.children[place], part));
}

// Lets a button copy what `text` returns; browsers allow it on this machine and with HTTPS.
export function copies(button, text) {
  button.hidden = !navigator.clipboard;
  button.onclick = async () => {
    await navigator.clipboard.writeText(text());
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 2000);
  };
}

// What scrolls because a table in it is wide can be scrolled by keys, too.
const sizes = new ResizeObserver((seen) => {
  for (const { target } of seen) {
    const box = target.closest("section");
    if (!box || box.id === "chosen") continue;
    if (target.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
});
for (const each of document.querySelectorAll("section table")) sizes.observe(each);

const NOTE = "note"; // the key of the row that says what is left out

function made(key, heads) {
  const line = document.createElement("tr");
  line.dataset.key = key;
  if (key === NOTE) Object.assign(line.insertCell(), { className: "none", colSpan: heads.length });
  else for (const head of heads) line.insertCell().className = head.className;
  return line;
}

function mark(line, name, its) {
  if (line.dataset[name] === its) return;
  if (its) line.dataset[name] = its;
  else delete line.dataset[name];
}

// What stands below the rows that are shown: how many there are more, perhaps with a button that has
// `more` show them. The focus then goes to the first of them.
export function rest(number, hint, more) {
  const said = `and ${count(number)} more${hint}`;
  return more ? [element("span", `${said} `), button("Show more", async ({ target }) => {
    const line = target.closest("tr");
    const [body, place] = [line.parentElement, line.sectionRowIndex];
    await more();
    body.rows[place]?.querySelector("button")?.focus();
  }, { class: "do" })] : said;
}

// Rows are `{ key, cells }`, perhaps with a `tone` and a `level` below others, or only their cells, which then are known by their place. If there are
// none, `nothing` is said; if there are more than are shown, how many, and `hint`, or a button by which `more` shows them.
export function table(id, rows, nothing, { most = SHOWN, inAll = rows.length, hint = "", more = null } = {}) {
  const body = $(id);
  const { tHead } = body.parentElement;
  const heads = tHead.rows[0].cells;
  tHead.hidden = !rows.length;
  const shown = rows.slice(0, most).map((row, place) => (row.key ? row : { key: String(place), cells: row.cells ?? row }));
  if (!rows.length) shown.push({ key: NOTE, cells: [nothing] });
  else if (inAll > shown.length) shown.push({ key: NOTE, cells: [rest(inAll - shown.length, hint, more)] });
  const focused = document.activeElement;
  const wanted = new Set(shown.map(({ key }) => key));
  const known = new Map();
  for (const line of [...body.rows]) {
    const { key } = line.dataset;
    if (!wanted.has(key) || known.has(key)) line.remove();
    else known.set(key, line);
  }
  let next = body.firstElementChild;
  for (const { key, cells, tone, level } of shown) {
    const line = known.get(key) ?? made(key, heads);
    known.delete(key);
    if (line === next) next = line.nextElementSibling;
    else body.insertBefore(line, next);
    mark(line, "tone", tone);
    mark(line, "level", level);
    cells.forEach((cell, column) => fill(line.cells[column], cell));
  }
  if (focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
}
