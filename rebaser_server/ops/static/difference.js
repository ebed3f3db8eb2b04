// A worker: it reads the difference of a branch, searches and sorts it, and gives the page the rows that
// are shown. Thousands of lines take nothing of the page's own thread.

const SHOWN = 100; // rows of a table
const FEW = 20; // effects that are listed before a pattern or a name is chosen
const NUMBER = /^-?[0-9.e+-]+$/i;
const compare = new Intl.Collator("en", { numeric: true }).compare;

let latest = ""; // the difference as it came
let found = null;

// Whether it differs from what was read before.
async function load(address) {
  const answer = await fetch(address);
  const text = await answer.text();
  if (!answer.ok) throw new Error(text.trim() || answer.statusText);
  if (text === latest) return false;
  found = JSON.parse(text);
  latest = text;
  return true;
}

const by = ({ head, branch }) => (NUMBER.test(head) && NUMBER.test(branch) ? Number(branch) - Number(head) : null);
const signed = (number) => (number === null ? "" : (number > 0 ? "+" : "") + String(Number(number.toPrecision(12))));
const note = (row) => [row.rows, row.both ? `head changed it, too; it was ${row.base || "not there"}` : ""].filter(Boolean).join("; ");

// An effect's size, whether it rises or falls; without one it failed, or is no number.
const KEYS = { by: (row) => Math.abs(by(row) ?? NaN), note };

// Numbers by size, and before texts; equal ones by name, as the rows come.
function inOrder(rows, { key, down }) {
  if (key === "name") return down ? rows.toReversed() : rows;
  const known = rows.map((row) => {
    const its = String((KEYS[key] ?? ((each) => each[key]))(row) ?? "");
    return { row, its, number: its === "" ? NaN : Number(its) };
  });
  const sign = down ? -1 : 1;
  known.sort((a, b) => {
    const [one, other] = [Number.isNaN(a.number), Number.isNaN(b.number)];
    return sign * (one && other ? compare(a.its, b.its) : one - other || a.number - b.number);
  });
  return known.map(({ row }) => row);
}

// What is shown of `rows`: `of` them are known by such a name.
function part(rows, search, order, more, most = SHOWN) {
  const wanted = new RegExp(search.replace(/[\\^$.+?()[\]{}|]/g, "\\$&").replaceAll("*", ".*"), "s");
  const named = search ? rows.filter((row) => wanted.test((row.name ?? row.id).toLowerCase())) : rows;
  const shown = inOrder(named, order).slice(0, most);
  return { rows: shown.map((row) => ({ ...row, ...more(row) })), of: named.length, inAll: rows.length };
}

const isFailing = ({ branch }) => branch === "failed" || branch === "blocked";

function parts(search, sorted, family) {
  if (found.problem) return found;
  const both = found.changes.filter((row) => row.both);
  const failing = found.computed.filter(isFailing);
  const effects = family ? found.computed.filter((row) => row.family === family) : found.computed;
  return {
    digest: found.digest,
    unknown: found.unknown,
    failing: { rows: failing.slice(0, SHOWN), of: failing.length },
    conflicts: { rows: both.slice(0, SHOWN), of: both.length },
    families: found.families,
    question: found.question,
    particulars: found.particulars,
    edits: part(found.changes, search, sorted.edits, (row) => ({ note: note(row) })),
    effects: { ...part(effects, search, sorted.effects, (row) => ({ by: row.rows ?? signed(by(row)) }), family || search ? SHOWN : FEW), inAll: found.computed.length },
  };
}

// Asked with the address, to read it anew, or without one.
onmessage = async ({ data: { number, address, search, sorted, family } }) => {
  try {
    const isNew = address ? await load(address) : false;
    postMessage({ number, ...parts(search, sorted, family), graph: isNew ? found.graph : null });
  } catch (error) {
    postMessage({ number, error: error.message });
  }
};
