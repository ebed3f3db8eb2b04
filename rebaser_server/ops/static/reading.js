// Reading what a page shows: when it is opened or come back to, and saying how that went.

import { $, ROOT, text } from "./texts.js";

const PAUSE = 200; // milliseconds without a key until a search begins

export async function readData(path) {
  const answer = await fetch(ROOT + path);
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return answer.json();
}

export const isLookedAt = () => document.visibilityState === "visible";

// A function that has `show` read and show all, and says when it did, or why it could not.
export function refreshing(show) {
  async function refresh() {
    performance.mark("refresh");
    try {
      await show();
      $("state").dataset.tone = "good";
      text("state", `read at ${new Date().toLocaleTimeString()}`);
    } catch (error) {
      $("state").dataset.tone = "bad";
      text("state", error.message);
    }
    performance.measure("refresh", "refresh");
  }
  document.onvisibilitychange = () => isLookedAt() && refresh();
  return refresh;
}

// Calls `search` once the field is left alone for a moment; what goes wrong is said in `note`.
export function searched(field, note, search) {
  let waiting = 0;
  $(field).oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      try {
        await search();
      } catch (error) {
        text(note, error.message);
      }
    }, PAUSE);
  };
}
