// The comments on a change set, and who looks at it: asked for every few seconds while this page is
// looked at, which says that its visitor looks at it, too.

import { act, may } from "./actions.js";
import { element, table } from "./cells.js";
import { isLookedAt, readData } from "./reading.js";
import { $, clock, count, text } from "./texts.js";

const EVERY = 15000; // milliseconds between two questions
let known = ""; // the comments that are shown

export async function showDiscussion(reading) {
  const { onlookers, last, comments, count: inAll } = await readData(reading("discussion", { known }));
  $("commentpart").hidden = false;
  text("onlookers", onlookers.length ? `Also looking at it: ${onlookers.join(", ")}` : "");
  if (!comments) return;
  known = String(last);
  table("comments", comments.map(({ id, at, by, text: said }) => ({ key: id, cells: [
    clock(at), by ?? "", said.split("\n").map((line) => element("div", line))] })), "No comments.");
  text("commentnote", inAll > comments.length ? `${count(inAll - comments.length)} earlier ones: rebaser change-sets describe` : "");
}

// Begins to ask, and lets those comment who may.
export function followDiscussion(ids, reading) {
  $("commentform").hidden = !may("comment");
  $("commentform").onsubmit = async (event) => {
    event.preventDefault();
    if (await act("comment", { ...ids, text: $("comment").value })) $("comment").value = "";
  };
  setInterval(() => isLookedAt() && !$("commentpart").hidden && showDiscussion(reading).catch((error) => text("onlookers", error.message)), EVERY);
}
