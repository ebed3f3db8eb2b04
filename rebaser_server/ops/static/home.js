// The front page: what wants attention, and all change sets, or services and keys, those with failures
// and at work first.

import { act, identify, may } from "./actions.js";
import { chip, copies, element, table } from "./cells.js";
import { failuresOf, follow } from "./frame.js";
import { isLookedAt, readData, searched } from "./reading.js";
import { callSets, keyOf, listSets } from "./sets.js";
import { $, OF_SERVICES, ROOT, ago, count, many, nameOf, pageOf, prose, seen, serviceOf, text, visible } from "./texts.js";

const EVERY = 10000; // milliseconds between two reads of the list
const MOST = 6; // failures that are shown here
const EARLIER = 10; // change sets that are asked for failed values which no Rebaser remembers

const addressOf = (row) => { // as commands take it
  const name = nameOf(row);
  const address = name.includes("…") ? `${row.workspace}/${row.changeSet}` : name.replace(" / ", "/");
  return /^[\w./-]+$/.test(address) ? address : `'${address.replaceAll("'", "'\\''")}'`;
};

let latest = null; // the status
let sets = null; // the list as it was read
let reads = 0; // how often
const details = new Map(); // of change sets with failed values: when that was, and the first of them

const earlier = new Map(); // what was known of failed values, as change sets that were asked or Rebasers said

// A Rebaser forgets what failed when it ends: the change sets themselves, the latest first, say it again.
async function lookBack() {
  for (const { workspace, changeSet, edited: at } of sets.changeSets.slice(0, EARLIER)) {
    const key = keyOf({ workspace, changeSet });
    if (!at || earlier.has(key)) continue;
    earlier.set(key, { values: 0 });
    const { statuses } = await readData(`change-set/values?${new URLSearchParams({ workspace, changeSet, status: "failed" })}`);
    if (!statuses.failed) continue;
    earlier.set(key, { workspace, changeSet, at, values: statuses.failed });
    if (latest) show(latest);
  }
}

function failures(status) {
  const known = failuresOf(status);
  const said = new Map(known.filter(({ values }) => values).toReversed().map((each) => [keyOf(each), each]));
  for (const [key, failure] of said) earlier.set(key, failure);
  return [...known, ...[...earlier.values()].filter((each) => each.values && !said.has(keyOf(each)))].sort((a, b) => b.at.localeCompare(a.at));
}

// What failed, as items of a list: of each change set and kind the latest.
function problems(status) {
  const items = new Map();
  for (const failure of failures(status)) {
    const key = failure.workspace + failure.changeSet + (failure.values ? "values" : failure.what);
    if (!items.has(key)) items.set(key, failure.over ? null : failure.values ? failedValues(failure) : otherFailure(failure));
  }
  const found = [...items.values()].filter(Boolean);
  const spark = status.rebasers.map((rebaser) => rebaser.spark).find(Boolean);
  if (spark) found.unshift({ what: "Spark does not compute", message: spark, next: "Values wait until it is back. `rebaser doctor` says more.", command: "rebaser doctor" });
  const dead = status.queues?.dead_letters;
  if (dead) {
    const [last] = status.queues.latest_dead;
    found.push({ href: `${ROOT}letters`, what: many(dead, "dead letter"), message: last?.reason ?? "", next: "Read why, mend the cause, then replay them.", command: "rebaser dead-letters" });
  }
  return found;
}

function failedValues(failure) {
  const known = details.get(keyOf(failure));
  if (known?.read !== reads || known.at !== failure.at) look(failure);
  if (known?.none) return null; // another Rebaser has computed them since
  const one = known?.one;
  const where = one ? `${one.name ?? "a value without a name"}${one.func ? `, computed by ${one.func}` : ""}: ` : "";
  return { row: failure, at: failure.at, what: many(failure.values, "value") + " failed",
    href: pageOf(failure, one ? { value: one.id } : {}), message: one?.message ? where + one.message : "",
    next: "Mend the function or an input, then compute again.", command: `rebaser dvu run ${addressOf(failure)} --failed`, again: true };
}

const NEXT = {
  "retry scheduled": "It stays first in its queue, and is tried again by itself.",
  "update failed": "It is tried again by itself. If the reason stays, `rebaser doctor` says more.",
  "function is not pure": "Mend the function, then compute its values again.",
};
const otherFailure = (failure) => ({ row: failure, at: failure.at, what: failure.what, href: pageOf(failure), message: failure.reason, next: NEXT[failure.what] ?? "" });

async function look(failure) {
  const now = { at: failure.at, read: reads };
  details.set(keyOf(failure), { ...details.get(keyOf(failure)), ...now });
  try {
    const { workspace, changeSet } = failure;
    const { failing } = await readData(`change-set/values?${new URLSearchParams({ workspace, changeSet, status: "failed" })}`);
    details.set(keyOf(failure), { ...now, one: failing[0], none: !failing.length });
    if (latest) attention(latest);
  } catch {
    // the number of failed values is shown without it
  }
}

let drawn = "";
function attention(status) {
  const found = problems(status);
  const now = JSON.stringify([found.slice(0, MOST).map((each) => ({ ...each, name: each.row && nameOf(each.row), ago: each.at && ago(each.at, status.now) })), found.length]);
  $("attention").hidden = !found.length;
  if (now === drawn) return;
  drawn = now;
  const focused = document.activeElement.dataset?.at;
  $("problems").replaceChildren(...found.slice(0, MOST).map(item));
  if (found.length > MOST) {
    const more = made("li", "", [made("a", `and ${count(found.length - MOST)} more`, [], { href: `${ROOT}updates` })]);
    $("problems").append(more);
  }
  if (focused) document.querySelector(`[data-at="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function made(tag, said, children = [], attributes = {}) {
  const element = document.createElement(tag);
  if (said) prose(element, said);
  for (const [name, its] of Object.entries(attributes)) element.setAttribute(name, visible(its));
  element.append(...children);
  return element;
}

function item({ row, at, what, href, message, next, command, again }, place) {
  const head = made("div", "", [made("span", what, [], { class: "what bad" })]);
  if (row) head.append(" in ", made("a", nameOf(row), [], { href, "data-at": `link ${place}` }));
  else if (href) head.append(" ", made("a", "show", [], { href, "data-at": `link ${place}` }));
  if (at) head.append(" ", made("span", ago(at, latest.now), [], { class: "note" }));
  const parts = [head];
  if (message) parts.push(made("div", message, [], { class: "message" }));
  const line = made("div", "", [made("span", next, [], { class: "next" })], { class: "choice" });
  if (again && may("recompute")) {
    const button = made("button", "Compute again", [], { type: "button", "data-at": `again ${place}`, "aria-label": `Compute again: the failed values of ${nameOf(row)}` });
    button.onclick = () => act("recompute", { workspace: row.workspace, changeSet: row.changeSet });
    line.append(button);
  } else if (command) {
    const button = made("button", "Copy", [], { type: "button", class: "copy", "aria-label": `Copy ${command}`, "data-at": `copy ${place}` });
    copies(button, () => command);
    line.append(made("code", "", [visible(command)]), button);
  }
  if (next || command) parts.push(line);
  return made("li", "", parts);
}

async function services() {
  const found = await readData("services");
  table("services", found.services.map((each) => ({ key: each.workspace, tone: each.deadLetters ? "bad" : "", cells: [
    element("a", seen(each.name), { href: serviceOf(each.name) }), Object.keys(each.handlers).sort().join(", "),
    each.deadLetters ? chip(many(each.deadLetters, "dead letter"), "bad") : element("span", "none", { class: "note" }),
    count(each.keys), each.requests ? count(each.requests) : "", each.edited ? ago(each.edited) : ""] })),
  "No worker has served a service yet.", { most: Infinity });
}

function list(status) {
  const failed = failures(status).filter((each) => !each.over && !(each.values && details.get(keyOf(each))?.none));
  const isNew = !listSets(status, sets, failed) && !$("search").value && !status.problem && !status.queues?.last_request;
  $("begin").hidden = !isNew || OF_SERVICES;
  $("setpart").hidden = isNew && !OF_SERVICES;
}

function show(status) {
  latest = status;
  attention(status);
  if (sets) list(status);
}

async function read() {
  reads += 1;
  sets = await readData(`change-sets?${new URLSearchParams({ search: $("search").value, order: "recent" })}`);
  callSets(sets);
  if (latest) show(latest);
  if (OF_SERVICES) await services();
  else lookBack().catch(() => {}); // what is not said here, is on the page of the change set
}
const reread = () => read().catch((error) => text("found", error.message));

for (const one of $("begin").querySelectorAll("button")) copies(one, () => one.previousElementSibling.textContent);
searched("search", "found", read);
await identify(reread);
await reread();
follow(show);
document.onvisibilitychange = () => isLookedAt() && reread();
setInterval(() => isLookedAt() && reread(), EVERY);
