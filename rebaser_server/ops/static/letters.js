// Dead letters: why each was given up, what it asked for, and sending it again.

import { doing, identify, isAsking } from "./actions.js";
import { button, named, said, table } from "./cells.js";
import { follow } from "./frame.js";
import { isLookedAt, readData, refreshing } from "./reading.js";
import { $, OF_SERVICES, count, lined, text } from "./texts.js";

const EVERY = 10000; // milliseconds between two reads of a page that is looked at
const NOTHING = "No dead letters. A request that cannot be applied, however often it is tried, lands here with the reason.";

const refresh = refreshing(async () => {
  const found = await readData("dead-letters");
  table("deadletters", found.letters.map((each) => ({ key: String(each.sequence), cells: [
    button(String(each.sequence), () => letter(each.sequence), { "aria-label": `Show dead letter ${each.sequence}` }),
    each.at ? new Date(each.at).toLocaleString() : "", each.workspace ? named(each) : "", said(each.reason),
    doing("replay", "Replay", `dead letter ${each.sequence}`, { number: each.sequence },
      { question: `Enqueue the ${OF_SERVICES ? "call" : "updates"} of dead letter ${each.sequence} again, as a new request?` })] })), NOTHING);
});

async function letter(number) {
  try {
    $("letter").textContent = lined(JSON.stringify(await readData(`dead-letters/${number}`), null, 2));
  } catch (error) {
    text("letter", error.message);
  }
  text("h-letter", `Dead letter ${number}`);
  $("letterpart").hidden = false;
  $("letterpart").focus();
}

await identify(refresh);
await refresh();
let shown = null; // how many there were when they were read; names are known with the first status
follow(({ queues }) => {
  if (!queues) return;
  text("found", `of ${count(queues.dead_letters)}`);
  if (shown !== queues.dead_letters && isLookedAt() && !isAsking()) refresh();
  shown = queues.dead_letters;
});
setInterval(() => isLookedAt() && !isAsking() && refresh(), EVERY);
