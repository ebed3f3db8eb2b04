// The frame of every page: where one is and can go, and how Rebaser is.

import { isLookedAt } from "./reading.js";
import { $, OF_SERVICES, ROOT, call, count, many, text } from "./texts.js";

const PAGES = [...(OF_SERVICES ? [["", "Services"]] : [["", "Workspaces"], ["updates", "Updates"]]), ["letters", "Dead letters"], ["operator", "Operate"], ["deployment", "Deployment"]];

const here = new URL(location.href).pathname.slice(new URL(ROOT).pathname.length);
const link = (path, label) => Object.assign(document.createElement("a"), { href: ROOT + path, textContent: label });
const links = PAGES.map(([path, label]) => link(path, label));
const current = PAGES.findIndex(([path]) => path === here);
links[Math.max(0, current)].setAttribute("aria-current", current < 0 ? "true" : "page");
const nav = document.createElement("nav");
nav.ariaLabel = "Rebaser";
nav.append(...links);
const skip = Object.assign(document.createElement("a"), { className: "skip", href: "#main", textContent: "To the content" });
$("where").before(skip, Object.assign(link("", "Rebaser"), { className: "brand" }), nav);
document.querySelector("main").id = "main";

const badge = Object.assign(document.createElement("span"), { className: "badge", hidden: true });
links.at(-3).append(" ", badge);

function head(status) {
  const ofNats = status.rebasers.map((rebaser) => rebaser.natsProblem).find(Boolean);
  const problem = status.problem ?? (ofNats ? `${ofNats[0]}. What to do: ${ofNats[1]}` : null);
  $("state").dataset.tone = problem ? "bad" : "good";
  text("state", problem ?? `${many(status.rebasers.length, "Rebaser")}, NATS answers`);
  const dead = status.queues?.dead_letters ?? 0;
  badge.hidden = !dead;
  badge.textContent = dead ? count(dead) : "";
}

const AGAIN = 3000; // milliseconds until it asks again after an answer that is no stream of events

// Shows what happens, once a second, and says when nothing comes. Tabs that are not looked at hold no
// connection: a browser has six to a server, and a seventh tab would wait for ever.
export function follow(show) {
  let events = null;
  const begin = () => {
    events?.close();
    if (isLookedAt()) events = listen(show, begin);
  };
  document.addEventListener("visibilitychange", begin);
  begin();
}

function listen(show, begin) {
  const events = new EventSource(`${ROOT}events`);
  events.onmessage = (event) => {
    performance.mark("refresh");
    const status = JSON.parse(event.data);
    call(status.names);
    head(status);
    show(status);
    performance.measure("refresh", "refresh");
  };
  events.onerror = () => {
    $("state").dataset.tone = "bad";
    text("state", "this Rebaser does not answer; trying again");
    if (events.readyState === EventSource.CLOSED) setTimeout(begin, AGAIN); // as while a Rebaser starts
  };
  return events;
}

// All change sets in slots, the longest held first, so that a row stays where it is.
export const holdingsOf = (status) => status.rebasers.flatMap((rebaser) => rebaser.holdings.map((each) => ({ ...each, instance: rebaser.instance })))
  .sort((a, b) => a.since.localeCompare(b.since) || a.changeSet.localeCompare(b.changeSet));

const BUSY = 2; // seconds after a request for which a change set counts as worked on
export const isWorking = (holding) => Boolean(holding.update) || holding.idleSeconds < BUSY;

// What failed lately, the latest first.
export const failuresOf = (status) => status.rebasers.flatMap((rebaser) => rebaser.failures).sort((a, b) => b.at.localeCompare(a.at));
