// Texts, tables and their cells: only what differs from what is shown is touched, so that a
// refresh costs little, and who reads or has the focus somewhere is left alone.

const LONGEST = 24; // characters of a name in a cell

export const $ = (id) => document.getElementById(id);
export const count = (number) => number.toLocaleString("en");

// What controls, cannot be seen, turns the order around or breaks a line is written out.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
export const visible = (value) => value.replace(UNSEEN, (character) => SHORT[character] ?? escaped(character.codePointAt(0)));
const escaped = (code) => (code > 0xff ? `\\u${hex(code, 4)}` : `\\x${hex(code, 2)}`);
const hex = (code, digits) => code.toString(16).padStart(digits, "0");

export function text(id, value) {
  put($(id), value);
}

function put(element, value) {
  value = visible(value);
  if (element.textContent !== value) element.textContent = value;
}

function set(element, name, value) {
  value = visible(value);
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function short(id) {
  return id.slice(0, 4) + "…" + id.slice(-6);
}

const names = {}; // of workspaces and change sets, by their ids
export function call(known) {
  Object.assign(names, known);
}

// What people call a change set or a workspace, if anything; all of it, or what a cell has room for.
export function called({ workspace, changeSet }, most = Infinity) {
  const parts = [names[workspace], changeSet && names[`${workspace}.${changeSet}`]].filter(Boolean);
  return parts.map((name) => (name.length > most ? `${name.slice(0, most - 1)}…` : name)).join(" / ");
}

// What an operator named it, or the end of a name made up; what follows the slash tells its starts apart.
export function instance(id) {
  const name = id.split("/")[0];
  return name.length === 26 ? short(name) : name;
}

export function span(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

export const since = (moment, now) => span(Math.max(0, (Date.parse(now) - Date.parse(moment)) / 1000));

// The time of day, with the date once that is another.
export function clock(moment, now) {
  if (!moment) return "";
  const at = new Date(moment);
  const today = at.toDateString() === new Date(now).toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString();
}

// The page of a change set.
export const pageOf = ({ workspace, changeSet }) => `change-set?${new URLSearchParams({ workspace, changeSet })}`;

// A cell that names a change set, and leads to its page; a button if there is more to be shown of it.
export function named(row, choose) {
  return { tag: choose ? "button" : row.workspace ? "a" : "code", row, choose };
}

// A cell with a bar: `done` of `all`.
export function bar(done, all, what) {
  return { tag: "progress", done, all, what };
}

const FILL = {
  code(element, { row }) {
    const ids = row.workspace ? `${short(row.workspace)}/${short(row.changeSet)}` : row.changeSet;
    put(element, called(row) ? `${called(row, LONGEST)} ${short(row.changeSet)}` : ids);
    set(element, "title", `${called(row)} ${row.workspace} ${row.changeSet}`.trim());
  },
  a(element, cell) {
    FILL.code(element, cell);
    set(element, "href", pageOf(cell.row));
  },
  button(element, cell) {
    FILL.code(element, cell);
    set(element, "type", "button");
    set(element, "aria-label", `Show ${element.title}`);
    element.onclick = () => cell.choose(cell.row);
  },
  progress(element, { done, all, what }) {
    set(element, "max", String(Math.max(1, all)));
    if (done) set(element, "value", String(done));
    else element.removeAttribute("value");
    set(element, "aria-label", what);
  },
};

function fill(td, cell) {
  if (typeof cell === "string") return put(td, cell);
  let element = td.firstElementChild;
  if (!element || element.localName !== cell.tag || td.childNodes.length > 1) {
    element = document.createElement(cell.tag);
    td.replaceChildren(element);
  }
  FILL[cell.tag](element, cell);
}

// Rows are lists of strings and cells; without any, `nothing` is said. At most `most` are shown.
export function table(id, rows, nothing, most = Infinity, inAll = rows.length) {
  const body = $(id);
  const heads = body.parentElement.tHead.rows[0].cells;
  const shown = rows.slice(0, most).map((cells) => ({ cells }));
  if (inAll > shown.length) shown.push({ note: `and ${count(inAll - shown.length)} more` });
  if (!rows.length) shown.push({ note: nothing });
  body.parentElement.tHead.hidden = !rows.length;
  while (body.rows.length > shown.length) body.deleteRow(-1);
  shown.forEach(({ cells, note }, place) => {
    let line = body.rows[place];
    if (!line || line.cells.length !== (note ? 1 : heads.length)) {
      line?.remove();
      line = body.insertRow(place);
      const columns = note ? 1 : heads.length;
      for (let column = 0; column < columns; column++)
        line.insertCell().className = note ? "none" : heads[column].className;
      if (note) line.cells[0].colSpan = heads.length;
    }
    if (note) put(line.cells[0], note);
    else cells.forEach((cell, column) => fill(line.cells[column], cell));
  });
}
