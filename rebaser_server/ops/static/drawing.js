// What is drawn as SVG: two plots over the last five minutes, and part of a graph.

import { count, many, short, visible } from "./texts.js";

const WINDOW = 300; // seconds that the plots go back
const BOX = { width: 132, height: 24, across: 164, down: 32, top: 34, left: 4 };
const LONGEST = 19; // characters of a label
const ID = /^[0-7][0-9A-Z]{25}$/; // of a value without a name

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

// The part of a graph that an update recomputes: levels from left to right, as `/sketch` has them.
export function graph(sketch) {
  const columns = sketch.sizes.map((size, column) => ({ size, rows: 0, column }));
  const places = sketch.values.map((value) => ({ x: BOX.left + value.column * BOX.across, y: BOX.top + columns[value.column].rows++ * BOX.down }));
  const tallest = Math.max(...columns.map((column) => column.rows));
  const width = BOX.left + columns.length * BOX.across - (BOX.across - BOX.width) + 4;
  const height = BOX.top + tallest * BOX.down + 18;
  const heads = columns.map(({ size, rows, column }) => {
    const level = sketch.sources ? column : column + 1;
    const title = level ? `level ${level}` : "changed";
    const x = BOX.left + column * BOX.across;
    const parts = [svg("text", { x, y: 16, class: "head" }, `${title}: ${count(size)}`)];
    if (size > rows) parts.push(svg("text", { x, y: BOX.top + rows * BOX.down + 10, class: "more" }, `and ${count(size - rows)} more`));
    return svg("g", {}, ...parts);
  });
  const edges = sketch.edges.map(([from, to]) => edge(places[from], places[to], BOX));
  const boxes = sketch.values.map((value, place) => {
    const { x, y } = places[place];
    const whole = ID.test(value.name) ? short(value.name) : value.name;
    const label = whole.length > LONGEST ? `${whole.slice(0, LONGEST - 1)}…` : whole;
    const kind = !value.function && value.forced && !(sketch.sources && value.column) ? "source" : value.forced ? "forced" : "perhaps";
    return svg("g", { class: `box ${kind}` },
      svg("title", {}, value.function ? `${value.name} = ${value.function}` : value.name),
      svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 4 }),
      svg("text", { x: x + 7, y: y + 16 }, label));
  });
  const label = `${count(sketch.values.length)} of ${many(sketch.sources + sketch.affected, "value")}, level by level`;
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...edges, ...boxes, ...heads);
}
