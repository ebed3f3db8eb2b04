// The status page: draws each status that the daemon sends, and says when none comes.

const WINDOW = 300; // seconds that the plots go back
const $ = (id) => document.getElementById(id);
const LISTED = 15; // updates; of the rest it says how many

function text(id, value) {
  const element = $(id);
  if (element.textContent !== value) element.textContent = value;
}

function short(id) {
  return id.slice(0, 4) + "…" + id.slice(-6);
}

// What an operator named it, or the end of a name made up; what follows the slash tells its starts apart.
function instance(id) {
  const name = id.split("/")[0];
  return name.length === 26 ? short(name) : name;
}

function name(row) {
  const code = document.createElement("code");
  code.textContent = row.workspace ? `${short(row.workspace)}/${short(row.changeSet)}` : row.changeSet;
  code.title = `${row.workspace} ${row.changeSet}`;
  return code;
}

function span(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

const since = (moment, now) => span(Math.max(0, (Date.parse(now) - Date.parse(moment)) / 1000));
const clock = (moment) => (moment ? new Date(moment).toLocaleTimeString() : "");

// Rows are lists of strings, numbers (right-aligned) and elements.
function table(id, rows, nothing) {
  const columns = $(id).parentElement.querySelectorAll("th").length;
  const lines = rows.map((row) => {
    const line = document.createElement("tr");
    row.forEach((cell, column) => {
      const td = document.createElement("td");
      if ($(id).parentElement.querySelectorAll("th")[column].classList.contains("n")) td.className = "n";
      td.append(cell);
      line.append(td);
    });
    return line;
  });
  if (!lines.length) {
    const line = document.createElement("tr");
    const td = document.createElement("td");
    td.className = "none";
    td.colSpan = columns;
    td.textContent = nothing;
    line.append(td);
    lines.push(line);
  }
  $(id).replaceChildren(...lines);
}

// All Rebasers' seconds on one time axis; latencies of one second: the worst of them.
function perSecond(status) {
  const end = Math.floor(Date.parse(status.now) / 1000) - 1;
  const seconds = Array.from({ length: WINDOW }, () => ({ requests: 0, p50: 0, p99: 0 }));
  for (const rebaser of status.rebasers)
    for (const rate of rebaser.rates) {
      const second = seconds[WINDOW - 1 - (end - rate.at)];
      if (!second) continue;
      second.requests += rate.requests;
      second.p50 = Math.max(second.p50, rate.p50);
      second.p99 = Math.max(second.p99, rate.p99);
    }
  return seconds;
}

function plot(id, series) {
  const highest = Math.max(1e-9, ...series.flatMap((one) => one.values));
  const paths = series.flatMap(({ values, kind, area }) => {
    const points = values.map((value, x) => `${x},${(79 - (value / highest) * 76).toFixed(1)}`);
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    line.setAttribute("d", "M" + points.join("L"));
    line.setAttribute("class", kind);
    if (!area) return [line];
    const under = document.createElementNS("http://www.w3.org/2000/svg", "path");
    under.setAttribute("d", `M0,80L${points.join("L")}L${WINDOW - 1},80Z`);
    under.setAttribute("class", "area");
    return [under, line];
  });
  $(id).replaceChildren(...paths);
  return highest > 1e-9 ? highest : 0;
}

function bar(update) {
  const progress = document.createElement("progress");
  progress.max = Math.max(1, update.affected);
  if (update.done) progress.value = update.done;
  progress.setAttribute("aria-label", `${update.done} of ${update.affected} values`);
  return progress;
}

function show(status) {
  const queues = status.queues;
  const seconds = perSecond(status);
  const lately = seconds.slice(-10).reduce((sum, second) => sum + second.requests, 0) / 10;
  const holdings = status.rebasers.flatMap((r) => r.holdings.map((h) => ({ ...h, instance: r.instance })));
  const busy = status.rebasers.reduce((sum, r) => sum + r.slots.busy, 0);
  const free = status.rebasers.reduce((sum, r) => sum + r.slots.free, 0);
  const updates = holdings.filter((holding) => holding.update);
  const count = (number) => number.toLocaleString();

  $("state").dataset.tone = status.problem ? "bad" : "good";
  text("state", status.problem ?? `${status.rebasers.length} Rebaser${status.rebasers.length > 1 ? "s" : ""}, NATS answers`);
  if (queues) {
    text("requests", count(queues.requests));
    text("oldest", queues.requests ? `oldest ${span(queues.oldest_age)}, ${count(queues.change_sets_waiting)} change sets` : "none");
    text("tasks", count(queues.tasks_waiting));
    text("inhand", `${count(queues.tasks_in_hand)} in hand`);
    text("dead", count(queues.dead_letters));
    text("deadnote", queues.dead_letters ? "see below" : "none");
    $("deadcard").dataset.tone = queues.dead_letters ? "bad" : "";
  }
  text("rate", lately.toFixed(lately < 10 ? 1 : 0));
  const last = seconds.findLast((second) => second.requests);
  text("latency", last ? `median ${span(last.p50)}, 99 % within ${span(last.p99)}` : "none in five minutes");
  text("held", count(busy));
  text("slots", `${count(free)} slots free`);
  text("updates", count(updates.length));
  text("values", updates.length ? `${count(updates.reduce((sum, h) => sum + h.update.affected, 0))} values` : "none");

  const rates = plot("rateplot", [{ values: seconds.map((s) => s.requests), kind: "rate", area: true }]);
  text("ratepeak", `peak ${rates}`);
  const waits = plot("waitplot", [
    { values: seconds.map((s) => s.p99), kind: "p99" }, { values: seconds.map((s) => s.p50), kind: "p50" }]);
  text("waitpeak", waits ? `peak ${span(waits)}` : "");

  const running = updates.slice(0, LISTED).map((h) => [name(h), bar(h.update), `${count(h.update.done)} of ${count(h.update.affected)}`,
    since(h.update.since, status.now)]);
  if (updates.length > LISTED) running.push([`and ${count(updates.length - LISTED)} more`, "", "", ""]);
  table("updatelist", running, "No update is running.");
  table("rebasers", status.rebasers.map((r) => {
    const recent = r.rates.filter((rate) => Date.parse(status.now) / 1000 - rate.at < 11);
    const label = instance(r.instance) + (r.instance === status.answering ? " (this one)" : "");
    return [label, r.version, new Date(r.started).toLocaleString(),
      `${r.slots.busy} of ${r.slots.busy + r.slots.free} taken`,
      (recent.reduce((sum, rate) => sum + rate.requests, 0) / 10).toFixed(1), span(r.lagSeconds)];
  }), "None answers.");
  table("holdings", holdings.map((h) => [name(h), instance(h.instance), count(h.requests), span(h.idleSeconds), since(h.since, status.now)]),
    "No change set is in work.");
  table("queues", (queues?.deepest ?? []).map((q) => [name(q), count(q.requests), span(q.oldestSeconds)]), "No request waits.");
  table("letters", (queues?.latest_dead ?? []).map((l) => [clock(l.at), name(l), l.reason]), "No dead letters.");
  const failures = status.rebasers.flatMap((r) => r.failures).sort((a, b) => b.at.localeCompare(a.at)).slice(0, 30);
  table("failures", failures.map((f) => [clock(f.at), name(f), f.what, f.reason]), "Nothing failed lately.");
}

const events = new EventSource("events");
events.onmessage = (event) => show(JSON.parse(event.data));
events.onerror = () => {
  $("state").dataset.tone = "bad";
  text("state", "this Rebaser does not answer; trying again");
};
