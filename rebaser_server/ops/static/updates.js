// Updates: what is recomputed now and lately, and what Rebasers hold for it.

import { identify } from "./actions.js";
import { bar, button, element, named, said, table } from "./cells.js";
import { failuresOf, follow, holdingsOf, isWorking } from "./frame.js";
import { graph } from "./drawing.js";
import { readData } from "./reading.js";
import { $, clock, count, instance, many, nameOf, pageOf, since, span, text } from "./texts.js";

const LISTED = 12; // rows of a table; of the rest it says how many
const RUNNING = 6; // of the updates, so that the picture is not far

const chosen = { row: null, byHand: false, drawn: null };
let latest = null;

function choose(row) {
  chosen.row = row;
  chosen.byHand = true;
  if (latest) show(latest);
  $("chosenupdate").scrollIntoView({ block: "nearest" });
}

const same = (a, b) => a && b && a.workspace === b.workspace && a.changeSet === b.changeSet;
const shows = (row) => (row.drawn ? button("show", () => choose(row), { "aria-label": `Show ${nameOf(row)}` }) : "");
const keyed = (row, ...cells) => ({ key: `${row.at ?? ""} ${row.workspace} ${row.changeSet} ${row.what ?? ""}`, cells });

function tables(status, holdings, updates) {
  const { now } = status;
  const list = (id, rows, nothing, inAll, most = LISTED) => table(id, rows, nothing, { most, inAll });
  list("updatelist", updates.map((h) => keyed(h, named(h), bar(h.update.done, h.update.affected, `${h.update.done} of ${h.update.affected} values of ${nameOf(h)}`),
    `${count(h.update.done)} of ${count(h.update.affected)}`, since(h.update.since, now), shows(h))), "No update is running.", undefined, RUNNING);
  list("failures", failuresOf(status).map((f) => ({ ...keyed(f, clock(f.at, now), named(f), f.what,
    f.values ? element("a", "the failed values", { href: pageOf(f, { status: "failed" }) }) : said(f.reason)), tone: f.over ? "" : "bad" })), "Nothing failed lately.");
  const row = (h) => keyed(h, named(h), instance(h.instance), count(h.requests), isWorking(h) ? since(h.since, now) : span(h.idleSeconds), shows(h));
  const [working, held] = [holdings.filter((h) => isWorking(h) && !h.update), holdings.filter((h) => !isWorking(h))];
  list("working", working.map(row), "No request is being worked on.");
  const more = status.rebasers.reduce((sum, each) => sum + each.slots.busy, 0) - holdings.length;
  list("held", held.map(row), "No change set is held.", held.length + Math.max(0, more));
}

// The picture: of the change set that was chosen, else of an update that runs, else of the last one.
async function picture(holdings, updates) {
  if (!chosen.byHand && updates.length && !updates.some((h) => same(h, chosen.row)))
    chosen.row = updates.reduce((a, b) => (b.update.affected > a.update.affected ? b : a));
  chosen.row ??= holdings.filter((h) => h.drawn).sort((a, b) => b.drawn.localeCompare(a.drawn))[0];
  const { row } = chosen;
  if (!row) return;
  const now = holdings.find((h) => same(h, row));
  text("chosenpage", nameOf(row));
  $("chosenpage").setAttribute("href", pageOf(row));
  const update = now?.update;
  const how = update ? `Running: ${count(update.done)} of ${many(update.affected, "value")} done.` : "Its latest update has ended.";
  const drawn = now?.drawn ?? chosen.drawn?.at ?? null;
  if (!same(chosen.drawn?.row, row) || (drawn && chosen.drawn.at !== drawn)) await draw(row, drawn);
  if (chosen.row === row) text("chosennote", `${how} ${chosen.drawn.note}`);
  $("chosenupdate").hidden = false;
}

async function draw(row, at) {
  chosen.drawn = { row, at, note: "" };
  const query = new URLSearchParams({ workspace: row.workspace, changeSet: row.changeSet });
  const { sketch } = await readData(`sketch?${query}`).catch(() => ({ sketch: null }));
  if (!same(chosen.row, row)) return;
  if (!sketch?.values.length) {
    Object.assign(chosen.drawn, { at: null, note: "There is no picture of this update." }); // asked for again
    return $("drawing").replaceChildren();
  }
  const left = sketch.levels - sketch.sizes.length + (sketch.sources ? 1 : 0);
  chosen.drawn.note = `${many(sketch.affected, "value")} in ${many(sketch.levels, "level")}`
    + `${sketch.sources ? ` ${sketch.affected === 1 ? "depends" : "depend"} on ${count(sketch.sources)} changed` : ""}; ${sketch.values.length} are drawn`
    + `${left > 0 ? `, ${many(left, "level")} left out` : ""}. Dashed: computed only if an input comes out changed.`;
  $("drawing").replaceChildren(graph(sketch));
}

function show(status) {
  latest = status;
  const holdings = holdingsOf(status);
  const updates = holdings.filter((holding) => holding.update);
  tables(status, holdings, updates);
  picture(holdings, updates);
}

await identify(() => {});
follow(show);
