// The values as a tree: failed ones first, then families of one name pattern, each of which can be opened.

import { amount, button, chip, element, table } from "./cells.js";
import { searched } from "./reading.js";
import { $, count, many, text } from "./texts.js";

const STATUSES = ["failed", "blocked", "pending", "ok"];
const TONES = { failed: "bad", blocked: "wait", pending: "work", ok: "" };
export const statusOf = (status) => (status === "ok" ? element("span", status, { class: "note" }) : chip(status, TONES[status]));

const opened = new Set(); // the patterns whose values are shown
let chosen = ""; // the status that is shown; all if empty

// A cell that shows a value when it is pressed.
export const valueOf = (page, { id, name }) => button(name ?? id, () => page.open({ id }), name ? {} : { title: "without a name" });

function row(page, each, level, key = each.id) {
  const is = each.message === null ? amount(each.text) : element("span", each.message.split("\n")[0], { class: "message" });
  return { key, level, tone: each.status === "failed" ? "bad" : "", cells: [valueOf(page, each), is, statusOf(each.status), each.func ?? ""] };
}

const asked = (more = {}) => ({ search: $("search").value, status: chosen, ...more });

// What is known of the values; whether an update is due.
export async function showValues(page) {
  const question = asked();
  const found = await page.data("values", question);
  const families = await Promise.all(found.groups.filter(({ family, values }) => opened.has(family) && !values.length)
    .map(async ({ family }) => [family, (await page.data("values", { ...question, family })).values]));
  if (JSON.stringify(question) !== JSON.stringify(asked())) return false; // it is another question by now
  show(page, found, new Map(families));
  return found.due;
}

function show(page, found, members) {
  text("found", `${found.count === found.inAll ? many(found.inAll, "value") : `${count(found.count)} of ${many(found.inAll, "value")}`}, as of commit ${found.commit}${found.due ? "; an update is due" : ""}`);
  const failing = chosen ? [] : found.failing;
  const rows = failing.map((each) => row(page, each, null, `first ${each.id}`));
  const above = new Set(failing.map(({ id }) => id));
  const failed = (found.statuses.failed ?? 0) + (found.statuses.blocked ?? 0);
  if (failing.length && failed > failing.length)
    rows.push({ key: "failing", cells: ["", `and ${count(failed - failing.length)} more failed or blocked`, "", ""] });
  for (const { family, count: size, statuses, values } of found.groups) {
    if (values.length) {
      rows.push(...values.filter(({ id }) => !above.has(id)).map((each) => row(page, each)));
      continue;
    }
    const isOpen = opened.has(family);
    const others = STATUSES.filter((status) => status !== "ok" && statuses[status]).map((status) => chip(`${count(statuses[status])} ${status}`, TONES[status]));
    rows.push({ key: `family ${family}`, cells: [
      button(family || "without a name", () => toggle(page, family), { class: "more", "aria-expanded": String(isOpen) }),
      element("span", many(size, "value"), { class: "note" }), others.length ? others : statusOf("ok"), ""] });
    if (!isOpen) continue;
    const those = members.get(family) ?? [];
    rows.push(...those.map((each) => row(page, each, "1")));
    if (size > those.length) rows.push({ key: `more ${family}`, level: "1", cells: [element("span", `and ${count(size - those.length)} more: search for fewer`, { class: "note" }), "", "", ""] });
  }
  const nothing = found.inAll ? `No value ${chosen ? `is ${chosen}` : "has that name"}.` : "There is no value yet: load some with rebaser load, or set one with rebaser values set.";
  table("values", rows, nothing, { most: Infinity, inAll: rows.length + Math.max(0, found.families - found.groups.length), hint: " patterns: search for fewer" });
  filters(page, found);
}

function toggle(page, family) {
  if (!opened.delete(family)) opened.add(family);
  again(page);
}

const again = (page) => showValues(page).catch((error) => text("found", error.message));

// A button for each status that values have.
function filters(page, { statuses }) {
  const all = Object.values(statuses).reduce((sum, number) => sum + number, 0);
  const labels = [["", `all ${count(all)}`], ...STATUSES.filter((each) => statuses[each] || each === chosen).map((each) => [each, `${count(statuses[each] ?? 0)} ${each}`])];
  const known = [...$("statuses").children];
  labels.forEach(([status, label], place) => {
    const one = known[place] ?? $("statuses").appendChild(document.createElement("button"));
    one.type = "button";
    if (one.textContent !== label) one.textContent = label;
    one.setAttribute("aria-pressed", String(status === chosen));
    one.onclick = () => {
      chosen = status;
      again(page);
    };
  });
  for (const one of known.slice(labels.length)) one.remove();
}

export function followValues(page, status) {
  chosen = STATUSES.includes(status) ? status : "";
  searched("search", "found", () => showValues(page));
}
