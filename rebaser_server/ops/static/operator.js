// The operators' page: dead letters, running updates, pauses and change sets, each with what can be
// done to it. It reads every few seconds while it is looked at, and after each action.

import { act, doing, identify, isAsking, may } from "./actions.js";
import { button, element, table } from "./cells.js";
import { isLookedAt, readData, refreshing, searched } from "./reading.js";
import { $, call, called, clock, count, lines, pageOf, since, text } from "./texts.js";

const EVERY = 10000; // milliseconds between two reads of a page that is looked at

const link = (row, name) => element("a", name, { href: pageOf(row), title: `${row.workspace} ${row.changeSet}` });
const ids = ({ workspace, changeSet }) => ({ workspace, changeSet });
const key = ({ workspace, changeSet }) => `${workspace}.${changeSet}`;

async function letters() {
  const found = await readData("dead-letters");
  table("deadletters", found.letters.map((each) => ({ key: String(each.sequence), cells: [
    button(String(each.sequence), () => letter(each.sequence), { "aria-label": `Show dead letter ${each.sequence}` }),
    clock(each.at), each.workspace ? link(each, called(each) || `${each.workspace}/${each.changeSet}`) : "", each.reason,
    doing("replay", "Replay", `dead letter ${each.sequence}`, { number: each.sequence },
      { question: `Enqueue the updates of dead letter ${each.sequence} again, as a new request?` })] })), "No dead letters.");
}

async function letter(number) {
  try {
    lines("letter", JSON.stringify(await readData(`dead-letters/${number}`), null, 2));
  } catch (error) {
    text("letter", error.message);
  }
  text("h-letter", `Dead letter ${number}`);
  $("letterpart").hidden = false;
  $("letterpart").focus();
}

async function updates() {
  const status = await readData("status");
  if (status.problem) throw new Error(status.problem);
  call(status.names);
  const running = status.rebasers.flatMap((rebaser) => rebaser.holdings).filter((holding) => holding.update);
  table("updates", running.map((each) => {
    const name = called(each) || `${each.workspace}/${each.changeSet}`;
    return { key: key(each), cells: [link(each, name), `${count(each.update.done)} of ${count(each.update.affected)}`, since(each.update.since, status.now),
      doing("cancel", "Cancel", `the update of ${name}`, ids(each), { question: `Stop the update of ${name}? It stays due, and is tried again a minute later.` })] };
  }), "No update is running.");
  const impure = status.rebasers.find((rebaser) => rebaser.impure)?.impure ?? []; // all have the same
  $("impurepart").hidden = !impure.length;
  table("impure", impure.map((each) => [clock(each.at), link(each, called(each) || `${each.workspace}/${each.changeSet}`), each.function,
    element("a", each.value, { href: `${pageOf(each)}&value=${encodeURIComponent(each.value)}` }), `${each.before}, then ${each.now}`]), "");
}

async function sets() {
  const found = await readData(`change-sets?${new URLSearchParams({ search: $("search").value })}`);
  text("found", `${count(found.count)} open`);
  table("paused", found.paused.map((each) => {
    const name = each.address || "everything";
    const scope = Object.fromEntries(Object.entries(ids(each)).filter(([, id]) => id));
    return { key: key(each), cells: [name, clock(each.since), each.by ?? "", each.reason ?? "", doing("resume", "Resume", name, scope)] };
  }), "Nothing is paused.");
  table("sets", found.changeSets.map((each) => ({ key: key(each), cells: [
    link(each, each.address), each.kind, each.pausedSince ? `${each.status}, paused` : each.status,
    [...doing("pause", "Pause", each.address, ids(each), { question: `Pause ${each.address}? Its requests wait until it is resumed.`, field: "Reason", key: "reason" }),
      ...doing("checkpoint", "Checkpoint", each.address, ids(each)),
      ...doing("recompute", "Compute failed values", `of ${each.address}`, ids(each))]] })),
  "No open change set has that name.", { inAll: found.count, hint: ": search for fewer" });
}

const refresh = refreshing(async () => {
  await updates(); // brings the names that the others show
  await Promise.all([letters(), sets()]);
});

searched("search", "found", sets);
$("pauseall").onclick = () => act("pause", {}, {
  question: "Pause everything, in all workspaces? Requests wait until it is resumed.", field: "Reason", key: "reason" });

await identify(refresh);
$("limited").hidden = may("replay");
$("pauseall").hidden = !may("pause");
await refresh();
setInterval(() => isLookedAt() && !isAsking() && refresh(), EVERY);
