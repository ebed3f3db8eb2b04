// Texts: how names, counts and times are shown, and that only what differs is touched.

export const $ = (id) => document.getElementById(id);
export const count = (number) => number.toLocaleString("en");
export const many = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

// What controls, cannot be seen, turns the order around or breaks a line is written out.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
export const visible = (value) => value.replace(UNSEEN, (character) => SHORT[character] ?? escaped(character.codePointAt(0)));
const escaped = (code) => (code > 0xff ? `\\u${hex(code, 4)}` : `\\x${hex(code, 2)}`);
const hex = (code, digits) => code.toString(16).padStart(digits, "0");

export function text(id, value) {
  put($(id), value);
}

export function put(element, value) {
  value = visible(value);
  if (element.firstElementChild || element.textContent !== value) element.textContent = value;
}

// Text with its lines; all else that cannot be seen is written out.
export function lines(id, value) {
  $(id).textContent = value.split("\n").map(visible).join("\n");
}

export function short(id) {
  return id.slice(0, 4) + "…" + id.slice(-6);
}

const names = {}; // of workspaces and change sets, by their ids
export function call(known) {
  Object.assign(names, known);
}

// What people call a change set or a workspace, if anything; all of it, or what a cell has room for.
export function called({ workspace, changeSet }, most = Infinity) {
  const parts = [names[workspace], changeSet && names[`${workspace}.${changeSet}`]].filter(Boolean);
  return parts.map((name) => (name.length > most ? `${name.slice(0, most - 1)}…` : name)).join(" / ");
}

// What an operator named it, or the end of a name made up; what follows the slash tells its starts apart.
export function instance(id) {
  const name = id.split("/")[0];
  return name.length === 26 ? short(name) : name;
}

export function span(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

export const since = (moment, now) => span(Math.max(0, (Date.parse(now) - Date.parse(moment)) / 1000));

// The time of day, with the date once that is another.
export function clock(moment, now = new Date()) {
  if (!moment) return "";
  const at = new Date(moment);
  const today = at.toDateString() === new Date(now).toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString();
}

// The page of a change set.
export const pageOf = ({ workspace, changeSet }) => `change-set?${new URLSearchParams({ workspace, changeSet })}`;
