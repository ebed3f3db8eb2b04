// The operators' page: running updates, pauses and change sets, each with what can be done to it. It
// reads every few seconds while it is looked at, and after each action.

import { act, doing, identify, isAsking, may } from "./actions.js";
import { element, named, table } from "./cells.js";
import { follow } from "./frame.js";
import { isLookedAt, readData, searched } from "./reading.js";
import { callSets, keyOf } from "./sets.js";
import { $, clock, count, nameOf, pageOf, since, text } from "./texts.js";

const EVERY = 10000; // milliseconds between two reads of a page that is looked at

const ids = ({ workspace, changeSet }) => ({ workspace, changeSet });

function updates(status) {
  const running = status.rebasers.flatMap((rebaser) => rebaser.holdings).filter((holding) => holding.update);
  table("updates", running.map((each) => ({ key: keyOf(each), cells: [
    named(each), `${count(each.update.done)} of ${count(each.update.affected)}`, since(each.update.since, status.now),
    doing("cancel", "Cancel", `the update of ${nameOf(each)}`, ids(each), { question: `Stop the update of ${nameOf(each)}? It stays due, and is tried again a minute later.` })] })), "No update is running.");
  const impure = status.rebasers.find((rebaser) => rebaser.impure)?.impure ?? []; // all have the same
  $("impurepart").hidden = !impure.length;
  table("impure", impure.map((each) => [clock(each.at), named(each), each.function,
    element("a", "show", { href: pageOf(each, { value: each.value }), "aria-label": `Show a value of ${each.function}` }), `${each.before}, then ${each.now}`]), "");
}

async function sets() {
  const found = await readData(`change-sets?${new URLSearchParams({ search: $("search").value })}`);
  callSets(found);
  text("found", count(found.count));
  table("paused", found.paused.map((each) => {
    const name = each.address || "everything";
    const scope = Object.fromEntries(Object.entries(ids(each)).filter(([, id]) => id));
    return { key: keyOf(each), cells: [name, clock(each.since), each.by ?? "", each.reason ?? "", doing("resume", "Resume", name, scope)] };
  }), "Nothing is paused.");
  table("sets", found.changeSets.map((each) => ({ key: keyOf(each), cells: [
    named(each), each.kind, each.pausedSince ? `${each.status}, paused` : each.status,
    [...doing("pause", "Pause", each.address, ids(each), { question: `Pause ${each.address}? Its requests wait until it is resumed.`, field: "Reason", key: "reason" }),
      ...doing("checkpoint", "Checkpoint", each.address, ids(each)),
      ...doing("recompute", "Compute failed values", `of ${each.address}`, ids(each))]] })),
  "No open change set has that name.", { inAll: found.count, hint: ": search for fewer" });
}

const refresh = async () => {
  performance.mark("refresh");
  try {
    await sets();
  } catch (error) {
    text("found", error.message);
  }
  performance.measure("refresh", "refresh");
};

searched("search", "found", sets);
$("pauseall").onclick = () => act("pause", {}, {
  question: "Pause everything, in all workspaces? Requests wait until it is resumed.", yes: "Pause everything", field: "Reason", key: "reason" });

await identify(refresh);
$("limited").hidden = may("pause");
$("pauseall").hidden = !may("pause");
await refresh();
follow(updates);
document.onvisibilitychange = () => isLookedAt() && refresh();
setInterval(() => isLookedAt() && !isAsking() && refresh(), EVERY);
