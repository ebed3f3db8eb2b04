// The deployment in numbers: load, waiting times, queues, and each Rebaser.

import { identify } from "./actions.js";
import { named, table } from "./cells.js";
import { follow, holdingsOf, isWorking } from "./frame.js";
import { perSecond, plot } from "./drawing.js";
import { $, count, instance, many, span, text } from "./texts.js";

const LISTED = 12; // rows of a table; of the rest it says how many

function glance(status, seconds) {
  const { queues } = status;
  const sum = (what) => status.rebasers.reduce((total, rebaser) => total + what(rebaser), 0);
  const holdings = holdingsOf(status);
  const updates = holdings.filter((holding) => holding.update);
  const working = holdings.filter(isWorking).length;
  if (queues) {
    text("requests", count(queues.requests));
    text("oldest", queues.requests ? `oldest ${span(queues.oldest_age)}` : "none");
    text("tasks", count(queues.tasks_waiting));
    text("dead", count(queues.dead_letters));
    $("deadcard").dataset.tone = queues.dead_letters ? "bad" : "";
  }
  const rate = seconds.slice(-10).reduce((total, second) => total + second.requests, 0) / 10;
  const last = seconds.findLast((second) => second.requests);
  text("rate", rate.toFixed(rate < 10 ? 1 : 0));
  text("latency", last ? `median ${span(last.p50)}` : "none in 5 min");
  text("working", count(working));
  text("heldnote", `${count(Math.max(0, sum((r) => r.slots.busy) - working))} held, at rest`);
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
    { values: seconds.map((s) => s.p99), kind: "p99", bars: true }, { values: seconds.map((s) => s.p50), kind: "p50", bars: true }], wait);
  text("waitpeak", longest ? `peak ${span(longest)}` : "");
}

function show(status) {
  const seconds = perSecond(status);
  const durability = status.rebasers.find((r) => r.instance === status.answering)?.durability;
  text("durability", durability ? `NATS syncs: ${durability.sync}; ${many(durability.replicas, "replica")}` : "");
  glance(status, seconds);
  plots(seconds);
  const { queues, now } = status;
  table("queues", (queues?.deepest ?? []).map((q) => ({ key: `${q.workspace} ${q.changeSet}`, cells: [named(q), count(q.requests), span(q.oldestSeconds)] })),
    "No request waits.", { most: LISTED, inAll: queues?.change_sets_waiting });
  table("rebasers", status.rebasers.map((r) => {
    const recent = r.rates.filter((each) => Date.parse(now) / 1000 - each.at < 11);
    return [instance(r.instance) + (r.instance === status.answering ? " (this one)" : ""), r.version, new Date(r.started).toLocaleString(),
      r.spark ? "away" : r.sparkReady ? "ready" : "not started",
      `${count(r.slots.busy)} of ${count(r.slots.busy + r.slots.free)}`,
      (recent.reduce((sum, each) => sum + each.requests, 0) / 10).toFixed(1), span(r.lagSeconds)];
  }), "No Rebaser answers.", { most: Infinity });
}

await identify(() => {});
follow(show);
