// What the visitor may do, and doing it: a question first, then a request, then a sentence.

import { button } from "./cells.js";
import { readData } from "./reading.js";
import { $, ROOT, text, visible } from "./texts.js";

document.body.insertAdjacentHTML("beforeend", `<dialog id="ask" aria-labelledby="question"><form method="dialog">
  <p id="question"></p>
  <ul id="particulars"></ul>
  <p id="entrylabel"><label><span id="entryname"></span> <input id="entry" autocomplete="off"></label></p>
  <p class="choice"><button value="" formnovalidate>Cancel</button> <button value="yes" class="primary" id="yes">Yes</button></p>
</form></dialog>`);

let visitor = { name: "", role: "viewer", may: [] };
let afterwards = () => {};

// Shows who the visitor is; must have ended before `may` is asked. `refresh` is called after each action.
export async function identify(refresh) {
  afterwards = refresh;
  try {
    visitor = await readData("identity");
    text("visitor", `${visitor.name}: ${visitor.role}`);
  } catch (error) {
    text("state", error.message);
  }
}

const ROLES = ["viewer", "editor", "approver", "operator"];
export const may = (action) => visitor.may.includes(action);
export const includes = (role) => ROLES.indexOf(visitor.role) >= ROLES.indexOf(role);
export const isAsking = () => $("ask").open;

// Asks in the dialog; returns the text that was entered, "" without a field, null if it was left.
function ask({ question, particulars = [], field, yes }) {
  const dialog = $("ask");
  text("question", question);
  $("particulars").hidden = !particulars.length;
  $("particulars").replaceChildren(...particulars.map((each) => Object.assign(document.createElement("li"), { textContent: visible(each) })));
  $("entrylabel").hidden = !field;
  text("entryname", field ?? "");
  $("entry").value = "";
  text("yes", yes);
  dialog.returnValue = "";
  dialog.showModal();
  (field ? $("entry") : $("yes")).focus();
  return new Promise((answered) => {
    dialog.onclose = () => answered(dialog.returnValue === "yes" ? $("entry").value : null);
  });
}
// Enter in the field agrees: the first button of a form, which cancels, would be pressed otherwise.
$("entry").onkeydown = (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  $("ask").close("yes");
};

// Has the server do it, once the visitor agreed to the `question`; true if it was done.
export async function act(action, body, how = {}) {
  let asked = body;
  if (how.question) {
    const entered = await ask({ yes: "Yes", ...how });
    if (entered === null) return false;
    if (how.key) asked = { ...body, [how.key]: entered };
  }
  tell("busy", "asking…");
  try {
    const answer = await fetch(`${ROOT}actions/${action}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked) });
    const said = await answer.text();
    tell(answer.ok ? "good" : "bad", answer.ok ? JSON.parse(said).said : said.trim() || answer.statusText);
    if (answer.ok) afterwards();
    return answer.ok;
  } catch (error) {
    tell("bad", error.message);
    return false;
  }
}

// The buttons of a cell that have something done to `what`; none where the visitor may not.
export const doing = (action, label, what, body, how) =>
  may(action) ? [button(label, () => act(action, body, { yes: label, ...how }), { class: "do", "aria-label": `${label} ${what}` })] : [];

function tell(tone, said) {
  $("done").dataset.tone = tone;
  text("done", said);
}
