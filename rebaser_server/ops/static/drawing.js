// What is drawn as SVG: plots over the last five minutes, and edges of graphs.

import { visible } from "./texts.js";

const WINDOW = 300; // seconds that the plots go back

export function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.map((child) => (typeof child === "string" ? visible(child) : child)));
  return element;
}

// All Rebasers' seconds on one time axis; latencies of one second: the worst of them.
export function perSecond(status) {
  const end = Math.floor(Date.parse(status.now) / 1000) - 1;
  const seconds = Array.from({ length: WINDOW }, () => ({ requests: 0, p50: null, p99: null }));
  for (const rebaser of status.rebasers)
    for (const rate of rebaser.rates) {
      const second = seconds[WINDOW - 1 - (end - rate.at)];
      if (!second) continue;
      second.requests += rate.requests;
      second.p50 = Math.max(second.p50, rate.p50);
      second.p99 = Math.max(second.p99, rate.p99);
    }
  return seconds;
}

// A line through each of `series`, or a bar for each of its seconds; a null is a gap. Returns the highest value.
export function plot(element, series, label) {
  const highest = Math.max(0, ...series.flatMap((one) => one.values));
  const y = (value) => (78 - (value / (highest || 1)) * 74).toFixed(1);
  const paths = [svg("path", { d: "M0,79H300", class: "ground" })];
  for (const { values, kind, area, bars } of series) {
    let d = "";
    values.forEach((value, x) => {
      if (bars) d += value === null ? "" : `M${x},79V${y(value)}`;
      else if (value !== null) d += x && values[x - 1] !== null ? `L${x},${y(value)}` : `M${x ? x - 1 : 0},${y(value)}H${x}`;
    });
    if (area) paths.push(svg("path", { class: "area", d: `M0,79L${d.slice(1)}L${WINDOW - 1},79Z` }));
    if (d) paths.push(svg("path", { class: kind, d }));
  }
  element.replaceChildren(...paths);
  element.setAttribute("aria-label", label(highest));
  return highest;
}

// A line from the right side of the box at `from` to the left side of the one at `to`. In the columns
// between them it runs through a gap between two rows, so that it leads to no box that is not its end.
export function edge(from, to, box) {
  const middle = box.height / 2;
  const gap = (box.down - box.height) / 2;
  let [x, y] = [from.x + box.width, from.y + middle];
  let d = `M${x},${y}`;
  const on = (endX, endY) => {
    const bend = Math.max(18, (endX - x) / 2);
    d += `C${x + bend},${y} ${endX - bend},${endY} ${endX},${endY}`;
  };
  for (let column = from.x + box.across; column < to.x; column += box.across) {
    const straight = from.y + ((to.y - from.y) * (column - from.x)) / (to.x - from.x);
    const between = from.y - gap + box.down * Math.round((straight - from.y + middle + gap) / box.down);
    on(column, between);
    d += `H${column + box.width}`;
    [x, y] = [column + box.width, between];
  }
  on(to.x, to.y + middle);
  return svg("path", { class: "edge", d });
}
