// The operators' page: dead letters, running updates, pauses and change sets, each with what can be
// done to it. It reads every few seconds while it is looked at, and after each action.

import { act, identify, may } from "./actions.js";
import { $, call, called, clock, count, pageOf, since, text } from "./cells.js";
import { button, element, fill, lines } from "./rows.js";

const EVERY = 10000; // milliseconds between two reads of a page that is looked at
const PAUSE = 200; // milliseconds without a key until a search begins

async function read(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return answer.text();
}

// What has changed since it was last read under this name; null if nothing has.
const latest = {};
async function news(name, path) {
  const answer = await read(path);
  if (latest[name] === answer) return null;
  latest[name] = answer;
  return JSON.parse(answer);
}

// A button that has something done to `what`; nothing where the visitor may not.
function doing(action, label, what, body, how) {
  if (!may(action)) return [];
  const press = async () => (await act(action, body, how)) && refresh();
  const focus = `${action} ${JSON.stringify(body)}`;
  return [button(label, press, { "aria-label": `${label} ${what}`, "data-focus": focus, class: "do" })];
}

const link = (row, name) => element("a", name, { href: pageOf(row), title: `${row.workspace} ${row.changeSet}` });
const ids = ({ workspace, changeSet }) => ({ workspace, changeSet });

async function letters() {
  const now = new Date().toISOString();
  const found = await news("letters", "dead-letters");
  if (found) fill("deadletters", found.letters.map((each) => [
    button(String(each.sequence), () => letter(each.sequence), { "aria-label": `Show dead letter ${each.sequence}`, "data-focus": `show ${each.sequence}` }),
    clock(each.at, now), each.workspace ? link(each, called(each) || `${each.workspace}/${each.changeSet}`) : "", each.reason,
    doing("replay", "Replay", `dead letter ${each.sequence}`, { number: each.sequence },
      { question: `Enqueue the updates of dead letter ${each.sequence} again, as a new request?` })]), "No dead letters.");
}

async function letter(number) {
  try {
    lines("letter", JSON.stringify(JSON.parse(await read(`dead-letters/${number}`)), null, 2));
  } catch (error) {
    text("letter", error.message);
  }
  text("h-letter", `Dead letter ${number}`);
  $("letterpart").hidden = false;
  $("letterpart").focus();
}

async function updates() {
  const status = JSON.parse(await read("status"));
  if (status.problem) throw new Error(status.problem);
  call(status.names);
  const running = status.rebasers.flatMap((rebaser) => rebaser.holdings).filter((holding) => holding.update);
  fill("updates", running.map((each) => {
    const name = called(each) || `${each.workspace}/${each.changeSet}`;
    return [link(each, name), `${count(each.update.done)} of ${count(each.update.affected)}`, since(each.update.since, status.now),
      doing("cancel", "Cancel", `the update of ${name}`, ids(each), { question: `Stop the update of ${name}? It stays due, and is tried again a minute later.` })];
  }), "No update is running.");
}

async function sets() {
  const now = new Date().toISOString();
  const found = await news("sets", `change-sets?${new URLSearchParams({ search: $("search").value })}`);
  if (!found) return;
  text("found", `${count(found.count)} open`);
  fill("paused", found.paused.map((each) => {
    const name = each.address || "everything";
    const scope = Object.fromEntries(Object.entries(ids(each)).filter(([, id]) => id));
    return [name, clock(each.since, now), each.by ?? "", each.reason ?? "", doing("resume", "Resume", name, scope)];
  }), "Nothing is paused.");
  fill("sets", found.changeSets.map((each) => [
    link(each, each.address), each.kind, each.pausedSince ? `${each.standing}, paused` : each.standing,
    [...doing("pause", "Pause", each.address, ids(each), { question: `Pause ${each.address}? Its requests wait until it is resumed.`, field: "Reason", key: "reason" }),
      ...doing("checkpoint", "Checkpoint", each.address, ids(each)),
      ...doing("recompute", "Compute failed values", `of ${each.address}`, ids(each))]]), "No open change set has that name.", found.count);
}

async function refresh() {
  try {
    await updates(); // brings the names that the others show
    await Promise.all([letters(), sets()]);
    $("state").dataset.tone = "good";
    text("state", `read at ${new Date().toLocaleTimeString()}`);
  } catch (error) {
    $("state").dataset.tone = "bad";
    text("state", error.message);
  }
}

let waiting = 0;
$("search").oninput = () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => sets().catch((error) => text("found", error.message)), PAUSE);
};
$("pauseall").onclick = async () => (await act("pause", {}, {
  question: "Pause everything, in all workspaces? Requests wait until it is resumed.", field: "Reason", key: "reason" })) && refresh();
document.onvisibilitychange = () => document.visibilityState === "visible" && refresh();

async function start() {
  await identify().catch((error) => text("state", error.message));
  $("limited").hidden = may("replay");
  $("pauseall").hidden = !may("pause");
  await refresh();
  setInterval(() => document.visibilityState === "visible" && !$("ask").open && refresh(), EVERY);
}
start();
