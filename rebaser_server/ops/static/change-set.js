// The page of one change set: its values, its commits, what is said of it, and of a branch the review.
// It reads when it is opened, when a person asks, when it is come back to, and again while an update is
// due.

import { identify, includes, isAsking, may } from "./actions.js";
import { showBranch } from "./branch.js";
import { chip, copies, element, fill } from "./cells.js";
import { showCommits } from "./commits.js";
import { followDiscussion, showDiscussion } from "./discussion.js";
import "./frame.js";
import { isLookedAt, readData, refreshing } from "./reading.js";
import { $, ROOT, ago, pageOf, call, text, visible } from "./texts.js";
import { chooseValue, followAddress, showChosen } from "./value.js";
import { followValues, showValues } from "./values.js";

const AGAIN = 1000; // milliseconds until it reads again while an update is due, at least;
const SHARE = 4; // times what reading took, so that a large change set is not read all the time
const asked = new URLSearchParams(location.search);
const path = new URL(location.href).pathname.slice(new URL(ROOT).pathname.length);
// It is named by its ids, or by the last two parts of the path.
const ids = { workspace: asked.get("workspace") ?? "", changeSet: asked.get("changeSet") ?? "" };
const naming = path.includes("/") ? { at: path.split("/").map(decodeURIComponent).join("/") } : ids;

const reading = (what, more = {}) => `change-set/${what}?${new URLSearchParams({ ...ids, ...more })}`;
const data = (what, more) => readData(reading(what, more));
const ALL = { rows: 10000 }; // what asks for a whole list, up to a length that a browser can show

const page = {
  ids, reading, data,
  // What shows a whole list, of which so many rows are listed, and asks for all from then on.
  more: (listed, asked, show) => (listed < ALL.rows ? () => show(Object.assign(asked, ALL)) : null),
  canSet: false, canRevert: false,
  addressOf: ({ id }) => pageOf(ids, { value: id }), // a page of its own for a value
  open: ({ id }) => chooseValue(page, id),
};

function head(known) {
  const name = known.name ? (known.kind === "branch" ? `${known.workspace} / ${known.name}` : known.workspace) : `${ids.workspace} ${ids.changeSet}`;
  text("title", known.name ? `${known.workspace} / ${known.name}` : name);
  document.title = `${visible(name)} – Rebaser`;
  if (!known.name) return text("about", "It is not registered under a name.");
  call({ [ids.workspace]: known.workspace, [`${ids.workspace}.${ids.changeSet}`]: known.name });
  const tones = { open: "good", applied: "", applying: "work" };
  fill($("kinds"), [chip(known.kind), chip(known.status, tones[known.status] ?? "wait")]);
  const parts = [element("span", `created ${ago(known.createdAt)}${known.by ? ` by ${known.by}` : ""}${known.problem ? `; ${known.problem}` : ""}`)];
  if (known.kind === "branch") parts.push(element("span", "; a branch of "), element("a", known.workspace, { href: pageOf({ workspace: ids.workspace, changeSet: known.head }) }));
  fill($("about"), parts);
}

let later = 0;
let isIncomplete = false; // as far as was read, also if the last attempt failed
const refresh = refreshing(async () => {
  clearTimeout(later);
  const began = performance.now();
  try {
    await read();
  } finally {
    const pause = Math.max(AGAIN, SHARE * (performance.now() - began));
    if (isIncomplete) later = setTimeout(again, pause);
  }
});

function again() {
  if (isAsking()) later = setTimeout(again, AGAIN);
  else if (isLookedAt()) refresh();
}

async function read() {
  const known = await readData(`change-set/about?${new URLSearchParams(naming)}`);
  Object.assign(ids, { workspace: known.workspaceId, changeSet: known.id });
  head(known);
  const isOpen = known.status === "open";
  const isBranch = known.kind === "branch";
  page.canSet = isBranch && isOpen && may("set-value");
  page.canRevert = isOpen && (isBranch ? may("revert") : includes("approver"));
  const parts = [showValues(page), showCommits(page)];
  if (isBranch) parts.push(showBranch(page, isOpen));
  if (known.name) parts.push(showDiscussion(reading));
  parts.push(showChosen(page));
  isIncomplete = (await Promise.all(parts)).includes(true);
}

copies($("copyids"), () => `${ids.workspace}/${ids.changeSet}`);
followValues(page, asked.get("status") ?? "");
followAddress(page);
await identify(refresh);
await refresh();
followDiscussion(ids, reading);
