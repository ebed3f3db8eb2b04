// The page of a service: its keys, those with failures first, and its handlers.

import { doing, identify, isAsking } from "./actions.js";
import { chip, element, fill, table } from "./cells.js";
import { failuresOf, follow } from "./frame.js";
import { isLookedAt, readData, searched } from "./reading.js";
import { callSets, listSets } from "./sets.js";
import { $, ago, count, seen, text, visible } from "./texts.js";

const EVERY = 10000; // milliseconds between two reads of a page that is looked at

const name = new URLSearchParams(location.search).get("name") ?? "";
let service = null; // as it was read
let sets = null; // its keys
let latest = null; // the status

const MOST = 60; // characters of a type
function typeOf(schema) {
  const kind = schema ?? {};
  if (kind.$ref) return kind.$ref.split("/").at(-1);
  if (kind.anyOf) return kind.anyOf.map(typeOf).join(" | ");
  if (kind.type === "array") return `list of ${typeOf(kind.items)}`;
  return kind.format ?? kind.title ?? kind.type ?? "any";
}
const short = (said) => (said.length > MOST ? `${said.slice(0, MOST)}…` : said);
function signature([handler, { arguments: given = {}, required = [] }]) {
  const parts = Object.entries(given).map(([each, schema]) => `${each}${required.includes(each) ? "" : "?"}: ${short(typeOf(schema))}`);
  return `${handler}(${parts.join(", ")})`;
}

function show() {
  if (!service || !latest) return;
  const pause = latest.paused.find((each) => each.workspace === service.workspace && !each.changeSet);
  fill($("kinds"), [chip(`version ${service.version}`), ...(pause ? [chip("paused", "wait")] : [])]);
  const scope = { workspace: service.workspace };
  fill($("do"), pause ? doing("resume", "Resume", name, scope)
    : doing("pause", "Pause", name, scope, { question: `Pause ${name}, all its keys? Calls wait until it is resumed.`, field: "Reason", key: "reason" }));
  listSets(latest, sets, failuresOf(latest).filter((each) => !each.over), service.workspace);
}

async function read() {
  [service] = (await readData(`services?${new URLSearchParams({ name })}`)).services;
  sets = await readData(`change-sets?${new URLSearchParams({ workspace: service.workspace, search: $("search").value, order: "recent" })}`);
  callSets(sets);
  text("keys", count(service.keys));
  text("requests", count(service.requests));
  text("dead", count(service.deadLetters));
  $("deadcard").dataset.tone = service.deadLetters ? "bad" : "";
  text("last", service.edited ? ago(service.edited) : "never");
  table("handlers", Object.entries(service.handlers).map((each) => ({ key: each[0], cells: [
    element("code", signature(each)), element("code", short(typeOf(each[1].result))), (each[1].doc ?? "").split("\n")[0]] })), "It has no handler.", { most: Infinity });
  show();
}
const reread = () => read().catch((error) => text("found", error.message));

text("title", seen(name));
document.title = `${visible(name)} – Rebaser`;
searched("search", "found", read);
await identify(reread);
await reread();
follow((status) => {
  latest = status;
  show();
});
document.onvisibilitychange = () => isLookedAt() && reread();
setInterval(() => isLookedAt() && !isAsking() && reread(), EVERY);
