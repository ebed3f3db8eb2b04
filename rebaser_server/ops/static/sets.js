// Change sets, or keys, in a list: what state each is in, those with failures and at work first.

import { bar, chip, element, named, table } from "./cells.js";
import { holdingsOf, isWorking } from "./frame.js";
import { $, OF_SERVICES, ago, call, count, many, nameOf, pageOf, seen, text } from "./texts.js";

export const keyOf = ({ workspace, changeSet }) => `${workspace}.${changeSet}`;

export const callSets = ({ changeSets }) => call(Object.fromEntries(changeSets.flatMap((row) => [[row.workspace, row.workspaceName], [keyOf(row), row.name]])));

// The state of a change set, and its rank: what failed, then what is worked on.
export function standings(status, failures) {
  const held = new Map(holdingsOf(status).map((each) => [keyOf(each), each]));
  const failed = new Map(failures.toReversed().map((each) => [keyOf(each), each]));
  const queues = status.queues?.deepest ?? [];
  const waiting = new Map(queues.map((each) => [keyOf(each), each.requests]));
  const areAll = queues.length === (status.queues?.change_sets_waiting ?? 0); // else the longest
  return (row) => {
    const holding = held.get(keyOf(row));
    const failure = failed.get(keyOf(row));
    const requests = waiting.get(keyOf(row)) ?? (areAll ? 0 : row.requests);
    const isAtWork = holding && (isWorking(holding) || (OF_SERVICES && requests)); // a handler may take long
    const cells = [];
    if (row.pausedSince) cells.push(chip("paused", "wait"));
    if (failure) cells.push(chip(failure.values ? `${count(failure.values)} failed` : failure.what, "bad"));
    if (row.deadLetters) cells.push(chip(many(row.deadLetters, "dead letter"), "bad"));
    if (holding?.update) {
      const { done, affected } = holding.update;
      cells.push(bar(done, affected, `${done} of ${affected} values of ${nameOf(row)}`), element("span", `${count(done)} of ${count(affected)} values`));
    } else if (isAtWork) cells.push(chip("working", "work"));
    else if (requests) cells.push(chip("waiting", "wait"));
    else if (holding) cells.push(chip("held"));
    if (row.status && row.status !== "open") cells.push(chip(row.status));
    return { requests, cells: cells.length ? cells : [element("span", "idle", { class: "note" })], rank: failure || row.deadLetters ? 0 : isAtWork || requests ? 1 : 2 };
  };
}

// Lists them, with those that work or wait and are not in the list yet, unless it is `of` one workspace;
// how many rows that are.
export function listSets(status, sets, failures, of = null) {
  const known = new Set(sets.changeSets.map(keyOf));
  const others = of || $("search").value || sets.count > sets.changeSets.length ? []
    : [...holdingsOf(status), ...(status.queues?.deepest ?? [])].filter((each) => each.workspace && !known.has(keyOf(each)) && known.add(keyOf(each)));
  const standing = standings(status, failures);
  const rows = [...sets.changeSets, ...others].map((row) => ({ row, ...standing(row) }));
  rows.sort((a, b) => a.rank - b.rank);
  text("found", sets.count || !rows.length ? `${count(sets.count)} open` : "");
  table("sets", rows.map(({ row, cells, rank, requests }) => ({ key: keyOf(row), tone: rank ? "" : "bad", cells: [
    of ? element("a", seen(row.name), { href: pageOf(row) }) : [named(row), ...(row.kind === "branch" ? [chip("branch")] : [])], cells,
    requests ? count(requests) : "", row.edited ? ago(row.edited, status.now) : "", row.by ?? ""] })),
  $("search").value ? "None that is open has that name." : "None is open.", { inAll: Math.max(rows.length, sets.count), hint: ": search for fewer" });
  return rows.length;
}
