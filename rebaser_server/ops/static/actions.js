// What the visitor may do, and doing it: a question first, then a request, then a sentence.

import { $, text } from "./cells.js";

let visitor = { name: "", role: "viewer", may: [] };

// Shows who the visitor is; must have ended before `may` is asked.
export async function identify() {
  const answer = await fetch("identity");
  if (!answer.ok) throw new Error((await answer.text()).trim());
  visitor = await answer.json();
  text("visitor", `${visitor.name}: ${visitor.role}`);
}

export const may = (action) => visitor.may.includes(action);
export const includes = (role) => ROLES.indexOf(visitor.role) >= ROLES.indexOf(role);
const ROLES = ["viewer", "editor", "approver", "operator"];

// Asks in the dialog; returns the text that was entered, "" without a field, null if it was left.
function ask(question, field) {
  const dialog = $("ask");
  text("question", question);
  $("entrylabel").hidden = !field;
  text("entryname", field ?? "");
  $("entry").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((answered) => {
    dialog.onclose = () => answered(dialog.returnValue === "yes" ? $("entry").value : null);
  });
}

// Has the server do it, once the visitor agreed to `question`; true if it was done.
export async function act(action, body, { question, field, key } = {}) {
  let asked = body;
  if (question) {
    const entered = await ask(question, field);
    if (entered === null) return false;
    if (key) asked = { ...body, [key]: entered };
  }
  tell("busy", "asking…");
  try {
    const answer = await fetch(`actions/${action}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked) });
    const said = await answer.text();
    tell(answer.ok ? "good" : "bad", answer.ok ? JSON.parse(said).said : said.trim() || answer.statusText);
    return answer.ok;
  } catch (error) {
    tell("bad", error.message);
    return false;
  }
}

export function tell(tone, said) {
  $("done").dataset.tone = tone;
  text("done", said);
}
