// Updates: what is recomputed now and lately, and what Rebasers hold for it.

import { identify } from "./actions.js";
import { bar, element, named, said, table } from "./cells.js";
import { failuresOf, follow, holdingsOf, isWorking } from "./frame.js";
import { clock, count, instance, nameOf, pageOf, since, span } from "./texts.js";

const LISTED = 12; // rows of a table; of the rest it says how many

const keyed = (row, ...cells) => ({ key: `${row.at ?? ""} ${row.workspace} ${row.changeSet} ${row.what ?? ""}`, cells });

function show(status) {
  const { now } = status;
  const holdings = holdingsOf(status);
  const list = (id, rows, nothing, inAll) => table(id, rows, nothing, { most: LISTED, inAll });
  list("updatelist", holdings.filter((h) => h.update).map((h) => keyed(h, named(h), bar(h.update.done, h.update.affected, `${h.update.done} of ${h.update.affected} values of ${nameOf(h)}`),
    `${count(h.update.done)} of ${count(h.update.affected)}`, since(h.update.since, now))), "No update is running.");
  list("failures", failuresOf(status).map((f) => ({ ...keyed(f, clock(f.at, now), named(f), f.what,
    f.values ? element("a", "the failed values", { href: pageOf(f, { status: "failed" }) }) : said(f.reason)), tone: f.over ? "" : "bad" })), "Nothing failed lately.");
  const row = (h) => keyed(h, named(h), instance(h.instance), count(h.requests), isWorking(h) ? since(h.since, now) : span(h.idleSeconds));
  const [working, held] = [holdings.filter((h) => isWorking(h) && !h.update), holdings.filter((h) => !isWorking(h))];
  list("working", working.map(row), "No request is being worked on.");
  const more = status.rebasers.reduce((sum, each) => sum + each.slots.busy, 0) - holdings.length;
  list("held", held.map(row), "No change set is held.", held.length + Math.max(0, more));
}

await identify(() => {});
follow(show);
