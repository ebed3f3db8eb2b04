// The commits: who changed what and when, each with what it changed, and undone by another one.

import { doing } from "./actions.js";
import { button, chip, element, rest, table } from "./cells.js";
import { ago, clock, count, many } from "./texts.js";
import { valueOf } from "./values.js";

const KINDS = {
  putValue: ["value", "defined"], setValue: ["value", "set"], setInputs: ["value", "with other inputs"], removeValue: ["value", "removed"],
  setComputed: ["value", "computed"], putFunc: ["function", "defined"], removeFunc: ["function", "removed"] };
const batch = ([kind, number]) => (KINDS[kind] ? `${many(number, KINDS[kind][0])} ${KINDS[kind][1]}` : `${count(number)} ${kind}`);

const opened = new Map(); // commits whose difference is shown, with that
let latest = []; // the commits
let kept = 0; // how many there are
const asked = {}; // for how many of them it asks

// What a commit did.
function done(commit) {
  const parts = [];
  if (commit.merged != null) parts.push(`head's changes up to ${commit.merged}`);
  if (commit.status != null) parts.push(`the change set is ${commit.status === "applying" ? "being applied" : commit.status}`);
  if (commit.computed) parts.push("results of an update");
  else if (commit.updates == null) parts.push("a large batch");
  else parts.push(...Object.entries(commit.updates).map(batch));
  return parts.join(", ") || "no update";
}

export async function showCommits(page) {
  ({ commits: latest, count: kept } = await page.data("log", asked));
  show(page);
}

function show(page) {
  const rows = latest.flatMap((each) => [line(page, each), ...(opened.has(each.commit) ? difference(page, each.commit) : [])]);
  const more = page.more(latest.length, asked, () => showCommits(page));
  table("log", rows, "No commit is kept.", { most: Infinity, inAll: rows.length + kept - latest.length, more });
}

function line(page, each) {
  const hasBatch = each.outcome === "applied" && !each.computed && (!each.updates || Object.keys(each.updates).length > 0);
  const isOpen = opened.has(each.commit);
  const what = [element("span", done(each))];
  if (each.outcome !== "applied") what.push(element("span", " "), chip(each.outcome, each.outcome === "dead" ? "bad" : "wait"));
  if (each.message) what.push(element("span", ` ${each.message}`, { class: "bad" }));
  const buttons = hasBatch ? [
    button("Difference", () => toggle(page, each.commit), { class: "do", "aria-expanded": String(isOpen), "aria-label": `Difference of commit ${each.commit}` }),
    ...(page.canRevert ? doing("revert", "Revert", `commit ${each.commit}`, { ...page.ids, commit: each.commit }, { question: `Undo what commit ${each.commit} changed, by a new commit?` }) : [])] : "";
  return { key: String(each.commit), cells: [String(each.commit), element("span", ago(each.time), { title: clock(each.time) }), each.author ?? "", what, buttons] };
}

function difference(page, commit) {
  const { changes, count: inAll, problem } = opened.get(commit);
  if (problem) return [{ key: `${commit} problem`, level: "1", cells: ["", "", "", problem, ""] }];
  const rows = changes.map((each) => ({ key: `${commit} ${each.id}`, level: "1", cells: ["", "",
    each.what === "function" ? element("code", `${each.name}()`) : valueOf(page, each),
    [element("span", each.what === "value" ? "" : `${each.what}: `), element("span", each.before || "not there", { class: "before" }), element("span", ` → ${each.after || "removed"}`)], ""] }));
  if (inAll > changes.length || !inAll) rows.push({ key: `${commit} more`, level: "1", cells: ["", "", "", inAll ? rest(inAll - changes.length, "", page.more(changes.length, {}, (all) => read(page, commit, all))) : "It changed no definition.", ""] });
  return rows;
}

function toggle(page, commit) {
  if (opened.delete(commit)) show(page);
  else read(page, commit);
}

async function read(page, commit, more = {}) {
  try {
    opened.set(commit, await page.data("commit", { commit, ...more }));
  } catch (error) {
    opened.set(commit, { problem: error.message });
  }
  show(page);
}
