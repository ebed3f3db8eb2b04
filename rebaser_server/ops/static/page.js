// The status page: shows each status that the daemon sends, and says when none comes.

import { bar, named, table } from "./cells.js";
import { graph, perSecond, plot } from "./drawing.js";
import { $, call, called, clock, count, instance, many, pageOf, since, span, text } from "./texts.js";

const LISTED = 12; // rows of a table; of the rest it says how many
const RUNNING = 6; // of the updates, so that the picture is not far

const chosen = { row: null, byHand: false, drawn: null };

function choose(row) {
  chosen.row = row;
  chosen.byHand = true;
  if (latest) show(latest);
  $("chosen").scrollIntoView({ block: "nearest" });
}

const same = (a, b) => a && b && a.workspace === b.workspace && a.changeSet === b.changeSet;

function glance(status, seconds, updates) {
  const queues = status.queues;
  const sum = (what) => status.rebasers.reduce((total, rebaser) => total + what(rebaser), 0);
  const rate = seconds.slice(-10).reduce((total, second) => total + second.requests, 0) / 10;
  const last = seconds.findLast((second) => second.requests);
  if (queues) {
    $("begin").hidden = queues.last_request > 0 || status.rebasers.some((rebaser) => rebaser.holdings.length);
    text("requests", count(queues.requests));
    text("oldest", queues.requests ? `oldest ${span(queues.oldest_age)}` : "none");
    text("tasks", count(queues.tasks_waiting));
    text("inhand", `${count(queues.tasks_in_hand)} in hand`);
    text("dead", count(queues.dead_letters));
    text("deadnote", queues.dead_letters ? "see below" : "none");
    $("deadcard").dataset.tone = queues.dead_letters ? "bad" : "";
    if (queues.dead_letters) $("deadnote").setAttribute("href", "#h-letters");
    else $("deadnote").removeAttribute("href");
  }
  text("rate", rate.toFixed(rate < 10 ? 1 : 0));
  text("latency", last ? `median ${span(last.p50)}` : "none in 5 min");
  text("held", count(sum((r) => r.slots.busy)));
  text("slots", `${many(sum((r) => r.slots.free), "slot")} free`);
  text("updates", count(updates.length));
  text("values", updates.length ? many(updates.reduce((total, h) => total + h.update.affected, 0), "value") : "none");
}

function plots(seconds) {
  const rate = (peak) => `Requests per second over five minutes, at most ${count(peak)}`;
  const peak = plot($("rateplot"), [{ values: seconds.map((s) => s.requests), kind: "rate", area: true }], rate);
  text("ratepeak", `peak ${count(peak)}`);
  const wait = (most) => `Seconds from stored to committed over five minutes, at most ${span(most)}`;
  const longest = plot($("waitplot"), [
    { values: seconds.map((s) => s.p99), kind: "p99" }, { values: seconds.map((s) => s.p50), kind: "p50" }], wait);
  text("waitpeak", longest ? `peak ${span(longest)}` : "");
}

const keyed = (row, ...cells) => ({ key: `${row.at ?? ""} ${row.workspace} ${row.changeSet}`, cells });

function tables(status, holdings, updates) {
  const { queues, now } = status;
  const list = (id, rows, nothing, inAll, most = LISTED) => table(id, rows, nothing, { most, inAll });
  list("updatelist", updates.map((h) => keyed(h, named(h, choose), bar(h.update.done, h.update.affected, `${h.update.done} of ${h.update.affected} values of ${h.changeSet}`),
    `${count(h.update.done)} of ${count(h.update.affected)}`, since(h.update.since, now))), "No update is running.", undefined, RUNNING);
  list("letters", (queues?.latest_dead ?? []).map((l) => keyed(l, clock(l.at, now), named(l), l.reason)), "No dead letters.", queues?.dead_letters);
  const failures = status.rebasers.flatMap((r) => r.failures).sort((a, b) => b.at.localeCompare(a.at));
  list("failures", failures.map((f) => keyed(f, clock(f.at, now), named(f), f.what, f.reason)), "No recent failures.");
  list("queues", (queues?.deepest ?? []).map((q) => keyed(q, named(q), count(q.requests), span(q.oldestSeconds))), "No request waits.", queues?.change_sets_waiting);
  list("rebasers", status.rebasers.map((r) => {
    const recent = r.rates.filter((rate) => Date.parse(now) / 1000 - rate.at < 11);
    return [instance(r.instance) + (r.instance === status.answering ? " (this one)" : ""), r.version, new Date(r.started).toLocaleString(),
      `${count(r.slots.busy)} of ${count(r.slots.busy + r.slots.free)}`,
      (recent.reduce((sum, rate) => sum + rate.requests, 0) / 10).toFixed(1), span(r.lagSeconds)];
  }), "No Rebaser answers.", undefined, Infinity);
  const inWork = status.rebasers.reduce((sum, r) => sum + r.slots.busy, 0);
  list("holdings", holdings.map((h) => keyed(h, named(h, h.drawn && choose), instance(h.instance), count(h.requests), span(h.idleSeconds), since(h.since, now))),
    "No Rebaser works on a change set.", Math.max(inWork, holdings.length));
  const paused = status.paused ?? [];
  $("pausedpart").hidden = !paused.length;
  list("paused", paused.map((p) => keyed(p, p.changeSet ? named(p) : p.workspace ? `workspace ${called(p)} ${p.workspace}` : "everything",
    clock(p.since, now), p.by ?? "", p.reason ?? "")), "Nothing is paused.");
}

// The picture: of the change set that was chosen, else of an update that runs, else of the last one.
async function picture(holdings, updates) {
  if (!chosen.byHand && updates.length && !updates.some((h) => same(h, chosen.row)))
    chosen.row = updates.reduce((a, b) => (b.update.affected > a.update.affected ? b : a));
  chosen.row ??= holdings.filter((h) => h.drawn).sort((a, b) => b.drawn.localeCompare(a.drawn))[0];
  const { row } = chosen;
  if (!row) return;
  const now = holdings.find((h) => same(h, row));
  text("chosenid", `Change set ${called(row)} ${row.workspace} ${row.changeSet}`);
  $("chosenpage").setAttribute("href", pageOf(row));
  const update = now?.update;
  const how = update ? `Running: ${count(update.done)} of ${many(update.affected, "value")} done.` : "Its latest update has ended.";
  const drawn = now?.drawn ?? chosen.drawn?.at ?? null;
  if (!same(chosen.drawn?.row, row) || (drawn && chosen.drawn.at !== drawn)) await draw(row, drawn);
  if (chosen.row === row) text("chosennote", `${how} ${chosen.drawn.note}`);
  $("chosen").hidden = false;
}

async function draw(row, at) {
  chosen.drawn = { row, at, note: "" };
  const query = new URLSearchParams({ workspace: row.workspace, changeSet: row.changeSet });
  const { sketch } = await fetch(`sketch?${query}`).then((answer) => answer.json()).catch(() => ({ sketch: null }));
  if (!same(chosen.row, row)) return;
  if (!sketch?.values.length) {
    Object.assign(chosen.drawn, { at: null, note: "There is no picture of this update." }); // asked for again
    return $("drawing").replaceChildren();
  }
  const left = sketch.levels - sketch.sizes.length + (sketch.sources ? 1 : 0);
  chosen.drawn.note = `${many(sketch.affected, "value")} in ${many(sketch.levels, "level")}`
    + `${sketch.sources ? ` ${sketch.affected === 1 ? "depends" : "depend"} on ${count(sketch.sources)} changed` : ""}; ${sketch.values.length} are drawn`
    + `${left > 0 ? `, ${many(left, "level")} left out` : ""}. Dashed: computed only if an input comes out changed.`;
  $("drawing").replaceChildren(graph(sketch));
}

function show(status) {
  const seconds = perSecond(status);
  call(status.names);
  // Longest held first, so that a row stays where it is while somebody reads it or has the focus there.
  const holdings = status.rebasers.flatMap((r) => r.holdings.map((h) => ({ ...h, instance: r.instance })))
    .sort((a, b) => a.since.localeCompare(b.since) || a.changeSet.localeCompare(b.changeSet));
  const updates = holdings.filter((holding) => holding.update);
  const ofNats = status.rebasers.map((r) => r.natsProblem).find(Boolean);
  const problem = status.problem ?? (ofNats ? `${ofNats[0]}. What to do: ${ofNats[1]}` : null);
  $("state").dataset.tone = problem ? "bad" : "good";
  text("state", problem ?? `${many(status.rebasers.length, "Rebaser")}, NATS answers`);
  const durability = status.rebasers.find((r) => r.instance === status.answering)?.durability;
  text("durability", durability ? `NATS syncs: ${durability.sync}; ${many(durability.replicas, "replica")}` : "");
  glance(status, seconds, updates);
  plots(seconds);
  tables(status, holdings, updates);
  picture(holdings, updates);
}

$("begincopy").hidden = !navigator.clipboard; // browsers have it on this machine and with HTTPS
$("begincopy").addEventListener("click", async () => {
  await navigator.clipboard.writeText($("begincommand").textContent);
  $("begincopy").textContent = $("begincopy").ariaLabel = "Copied";
});

let latest = null;
const events = new EventSource("events");
events.onmessage = (event) => {
  performance.mark("refresh");
  latest = JSON.parse(event.data);
  show(latest);
  performance.measure("refresh", "refresh");
};
events.onerror = () => {
  $("state").dataset.tone = "bad";
  text("state", "this Rebaser does not answer; trying again");
};
