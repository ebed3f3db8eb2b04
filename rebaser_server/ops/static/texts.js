// Texts: how names, counts and times are shown, and that only what differs is touched.

export const ROOT = new URL("./", import.meta.url).href; // of all that this Rebaser serves

export const OF_SERVICES = document.documentElement.dataset.of === "services"; // else of values

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
export const lined = (value) => value.split("\n").map(visible).join("\n");

// Text in which what stands between backticks is code.
export function prose(element, value) {
  if (element.dataset.said === value) return;
  element.dataset.said = value;
  element.replaceChildren(...value.split("`").map((part, place) => {
    if (place % 2 === 0) return visible(part);
    const code = document.createElement("code");
    code.textContent = visible(part);
    return code;
  }));
}

export function short(id) {
  return id.slice(0, 4) + "…" + id.slice(-6);
}

const names = {}; // of workspaces and change sets, by their ids
const bearers = new Map(); // how many change sets have a path
export function call(known) {
  Object.assign(names, known);
  bearers.clear();
  for (const key of Object.keys(names)) if (key.includes(".")) bearers.set(pathOf(key), (bearers.get(pathOf(key)) ?? 0) + 1);
}
const pathOf = (key) => [names[key.split(".")[0]] ?? "", names[key]].map(encodeURIComponent).join("/");

// A name that can be seen: one of nothing but spaces stands in quotes.
export const seen = (name) => (name.trim() ? name : JSON.stringify(name));

// What people call a change set or a workspace, if anything.
export function called({ workspace, changeSet }) {
  return [names[workspace], changeSet && names[`${workspace}.${changeSet}`]].filter(Boolean).map(seen).join(" / ");
}

// The name of a change set; of one without a name a part of its ids.
export const nameOf = (row) => called(row) || (row.workspace ? `${short(row.workspace)} / ${short(row.changeSet)}` : row.changeSet);

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

// How long ago that was, as far as a person wants to know.
export function ago(moment, now = Date.now()) {
  const seconds = (new Date(now) - Date.parse(moment)) / 1000;
  return seconds < 10 ? "now" : `${span(seconds < 60 ? Math.round(seconds / 10) * 10 : seconds)} ago`;
}

// The time of day, with the date once that is another.
export function clock(moment, now = new Date()) {
  if (!moment) return "";
  const at = new Date(moment);
  const today = at.toDateString() === new Date(now).toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString();
}

export const serviceOf = (name) => `${ROOT}service?${new URLSearchParams({ name })}`;

// The page of a change set: by its name if no other has it, else by its ids. A name of a key may be
// anything, which no path can.
export function pageOf({ workspace, changeSet }, more = {}) {
  if (OF_SERVICES) {
    const [service, key] = [names[workspace], names[`${workspace}.${changeSet}`]];
    return `${ROOT}key?${new URLSearchParams(service && key ? { service, key } : { workspace, changeSet })}`;
  }
  const path = names[workspace] && pathOf(`${workspace}.${changeSet}`);
  const isNamed = path && bearers.get(path) === 1 && !/(^|\/)\.{0,2}(\/|$)|^(actions|change-set|dead-letters|services)\//.test(path);
  const query = new URLSearchParams(isNamed ? more : { workspace, changeSet, ...more }).toString();
  return `${ROOT}${isNamed ? path : "change-set"}${query && "?"}${query}`;
}

// A number of a sum: no more digits than one reads.
export function brief(number) {
  const size = Math.abs(number);
  if (size >= 1e6 && size < 1e15) return Math.round(number).toLocaleString("en");
  const notation = size && (size < 1e-6 || size >= 1e15) ? "scientific" : "standard";
  return number.toLocaleString("en", { maximumSignificantDigits: 6, notation });
}

// A number in JSON as people read it: thousands apart, and no more digits than one reads. All else as it is.
export function figure(said) {
  if (said.length > 40 || !/^[+-]?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(said) || !Number.isFinite(Number(said))) return said;
  const isWhole = /^[+-]?\d+$/.test(said);
  const digits = said.replace(/e.*|\D/gi, "").length;
  if (digits <= (isWhole ? 4 : 6) && !/e/i.test(said)) return said;
  return (said[0] === "+" ? "+" : "") + (isWhole ? BigInt(said).toLocaleString("en") : brief(Number(said)));
}
