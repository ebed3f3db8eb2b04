// The page of a key of a service: its state, what became of its calls, and what waits.

import { doing, identify, isAsking } from "./actions.js";
import { chip, copies, element, fill, table } from "./cells.js";
import { failuresOf, follow, holdingsOf } from "./frame.js";
import { isLookedAt, readData, refreshing } from "./reading.js";
import { keyOf, standings } from "./sets.js";
import { $, ROOT, ago, clock, count, lined, many, seen, serviceOf, short, span, text, visible } from "./texts.js";

const EVERY = 10000; // milliseconds between two reads of a page that is looked at
const TONES = { dead: "bad", refused: "wait" };

// It is named by names or ids, or by the last two parts of the path.
const path = new URL(location.href).pathname.slice(new URL(ROOT).pathname.length).split("/").map(decodeURIComponent);
const asked = path.length > 1 ? { service: path[0], key: path[1] } : Object.fromEntries(new URLSearchParams(location.search));
let rows = 20; // calls that are listed
let known = null; // the key as it was read
let latest = null; // the status

const request = (id) => (id ? element("code", short(id), { title: id, class: "id" }) : "");

function head() {
  const { service, key } = known;
  fill($("title"), [element("a", seen(service), { href: serviceOf(service) }), element("span", ` / ${seen(key)}`)]);
  document.title = `${visible(key)}, ${visible(service)} – Rebaser`;
  const pauses = latest.paused.filter((each) => (!each.workspace || each.workspace === known.workspace) && (!each.changeSet || each.changeSet === known.changeSet));
  const own = pauses.find((each) => each.changeSet);
  const ids = { workspace: known.workspace, changeSet: known.changeSet };
  const failures = failuresOf(latest).filter((each) => !each.over && keyOf(each) === keyOf(known));
  const row = { ...ids, requests: known.waitingCount, deadLetters: known.letterCount, pausedSince: pauses[0]?.since };
  fill($("kinds"), standings(latest, failures)(row).cells);
  fill($("do"), own ? doing("resume", "Resume", key, ids)
    : doing("pause", "Pause", key, ids, { question: `Pause ${key}? Its calls wait until it is resumed.`, field: "Reason", key: "reason" }));
  text("about", pauses.map((each) => `${each.changeSet ? "Paused" : each.workspace ? "Its service is paused" : "Everything is paused"} since ${clock(each.since)}${each.by ? ` by ${each.by}` : ""}${each.reason ? `: ${each.reason}` : ""}.`).join(" "));
  text("message", failures[0] ? `${failures[0].what} ${ago(failures[0].at, latest.now)}: ${failures[0].reason}` : "");
}

function show() {
  const { letters, timers, waiting, calls } = known;
  const dead = new Map(letters.map((each) => [each.request, each.call]));
  text("requests", count(known.waitingCount));
  text("oldest", waiting.length ? `the first came ${ago(waiting[0].stored)}` : "");
  text("dead", count(known.letterCount));
  $("deadcard").dataset.tone = letters.length ? "bad" : "";
  text("timercount", count(timers.length));
  text("nexttimer", timers.length ? `next ${clock(timers[0].next)}` : "");
  text("last", calls.length ? ago(calls[0].time) : "never");
  text("lastwhat", calls[0]?.handler ?? calls[0]?.outcome ?? "");
  text("statenote", `of commit ${known.commit}${known.stateVersion > 1 ? `, version ${known.stateVersion}` : ""}${known.state?.length < known.stateSize ? `; the first of ${count(known.stateSize)} characters, rebaser values shows all` : ""}${known.sending ? `; ${many(known.sending, "call")} to other keys on the way` : ""}`);
  $("keystate").textContent = known.state === null ? "The key keeps no state." : lined(known.state);
  $("letterpart").hidden = !letters.length;
  table("letters", letters.map((each) => ({ key: String(each.sequence), tone: "bad", cells: [
    [element("code", each.call || "a request that cannot be read"), element("div", each.reason, { class: "message" })], each.at ? ago(each.at) : "",
    doing("replay", "Replay", `dead letter ${each.sequence}`, { number: each.sequence }, { question: `Make the call of dead letter ${each.sequence} again, as a new request?` })] })), "", { inAll: known.letterCount });
  $("timerpart").hidden = !timers.length;
  table("timers", timers.map((each) => ({ key: each.name, cells: [[element("span", seen(each.name)), element("code", ` → ${each.handler}`, { class: "note" })], [element("span", clock(each.next)), element("span", each.every ? ` then ${each.every} ${each.zone ?? "UTC"}` : "", { class: "note" })]] })), "");
  $("queuepart").hidden = !waiting.length;
  table("queue", waiting.map((each) => ({ key: String(each.sequence), cells: [element("code", each.call), ago(each.stored), request(each.request)] })), "", { inAll: known.waitingCount });
  table("calls", calls.map((each) => ({ key: String(each.commit), tone: each.outcome === "dead" ? "bad" : "", cells: [
    each.handler || dead.has(each.request) ? element("code", each.handler ?? dead.get(each.request).split("(")[0]) : element("span", each.outcome === "applied" ? "timer" : "–", { class: "note" }),
    each.outcome === "applied" ? element("code", each.result === "null" ? "" : `→ ${each.result}`) : [chip(each.outcome, TONES[each.outcome]), element("span", (each.message ?? "").replace(/^refused: /, ""), { class: "message" })],
    element("span", ago(each.time), { title: clock(each.time) }), span(Math.max(0, Date.parse(each.time) - Date.parse(each.stored)) / 1000), request(each.request)] })),
  "No call is settled yet.", { most: Infinity });
  $("more").hidden = !known.areMore;
  if (latest) head();
}

const refresh = refreshing(async () => {
  known = await readData(`services/key?${new URLSearchParams({ ...asked, rows })}`);
  show();
});

// What a status says of this key: it is read again once that is another.
function mark(status) {
  const its = (each) => keyOf(each) === keyOf(known);
  const held = holdingsOf(status).filter(its).map((each) => each.requests);
  return JSON.stringify([held, (status.queues?.deepest ?? []).filter(its).map((each) => each.requests), status.queues?.dead_letters, failuresOf(status).filter(its)]);
}

copies($("copystate"), () => $("keystate").textContent);
$("more").onclick = () => {
  rows *= 5;
  refresh();
};
await identify(refresh);
await refresh();
let isReading = false; // one read at a time: a long log takes a while
async function again() {
  if (isReading || !isLookedAt() || isAsking()) return;
  isReading = true;
  await refresh();
  isReading = false;
}

let shown = ""; // what the status said when it was read
follow((status) => {
  latest = status;
  if (!known) return;
  head();
  const now = mark(status);
  if (isReading || now === shown) return;
  shown = now;
  again();
});
setInterval(again, EVERY);
