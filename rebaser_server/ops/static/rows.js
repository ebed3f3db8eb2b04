// Elements, and tables whose rows are made anew whenever they are read.

import { $, count, visible } from "./cells.js";

export const SHOWN = 100; // rows of a table

export function element(tag, value, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = visible(value);
  for (const [name, its] of Object.entries(attributes)) made.setAttribute(name, its);
  return made;
}

export function button(label, press, attributes = {}) {
  const made = element("button", label, { type: "button", ...attributes });
  made.onclick = press;
  return made;
}

// Text with its lines; all else that cannot be seen is written out.
export function lines(id, value) {
  $(id).textContent = value.split("\n").map(visible).join("\n");
}

// Rows are lists of texts, elements and lists of elements; if there are none, `nothing` is said.
// The focus stays on the element with the same `data-focus`.
export function fill(id, rows, nothing, inAll = rows.length) {
  const body = $(id);
  const columns = body.parentElement.tHead.rows[0].cells;
  const lines = rows.slice(0, SHOWN).map((cells) => {
    const line = document.createElement("tr");
    cells.forEach((cell, column) => {
      const td = document.createElement("td");
      td.className = columns[column].className;
      td.append(...[cell].flat().map((part) => (typeof part === "string" ? visible(part) : part)));
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
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  body.replaceChildren(...lines);
  if (focused) body.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}
