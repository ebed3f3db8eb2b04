// The effects of a branch as a graph: each edit, and to the right of it what follows from it. One of
// its nodes is in the order of the tab key; the arrow keys go on from there, along the edges first.

import { edge, svg } from "./drawing.js";
import { $, brief as number, count, many, put, text, visible } from "./texts.js";

const BOX = { width: 190, height: 40, across: 240, down: 50, edge: 4 };
const LONGEST = 25; // characters of a line
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const x = ({ level }) => BOX.edge + level * BOX.across;
const y = ({ row }) => BOX.edge + row * BOX.down;
const cut = (line, most) => (line.length > most ? `${line.slice(0, most - 1)}…` : line);
// A number that is too long is rounded.
const brief = (side, most) => (side.length <= most || Number.isNaN(Number(side)) ? cut(side, most) : `≈${Number(Number(side).toPrecision(6))}`);
const nameOf = ({ id, name, what }) => (what === "function" ? `${name}()` : name ?? id);

function sides({ head, branch, change, what, count: size }, most = Infinity) {
  if (what === "family") return `${many(size, "value")}${head === null || branch === null ? "" : most < Infinity ? `, ${change}` : `, ${number(head)} → ${number(branch)}, ${change}`}`;
  if (what === "function") return "another function";
  return `${brief(head || "not there", most)} → ${brief(branch || "removed", most)}`;
}

let chosen = null; // the id of the node in the order of the tab key
let drawn = { shape: "", boxes: [] };

const MARKS = { both: "⚠ ", edited: "✎ ", computed: "" };
const SAID = { both: "edited, and changed by head, too", edited: "edited", computed: "computed" };
const kindOf = (node) => (node.both ? "both" : node.edited ? "edited" : "computed");

// Says in its box what a node is.
function label(box, node) {
  const kind = kindOf(node);
  const [title, , name, values] = box.children;
  const whole = visible(`${MARKS[kind]}${nameOf(node)} ${sides(node, LONGEST / 2 - 1)}, ${SAID[kind]}`);
  if (box.getAttribute("aria-label") === whole) return;
  box.setAttribute("aria-label", whole);
  put(title, `${nameOf(node)}: ${sides(node)}`);
  put(name, MARKS[kind] + cut(nameOf(node), LONGEST - MARKS[kind].length));
  put(values, sides(node, LONGEST / 2 - 1));
}

function nodeBox(node, { addressOf, open, choose }) {
  const isFamily = node.what === "family";
  const box = svg("a", { class: `box ${kindOf(node)}`, href: isFamily ? "#effects" : addressOf(node), tabindex: "-1" },
    svg("title", {}),
    svg("rect", { x: x(node), y: y(node), width: BOX.width, height: BOX.height, rx: 4 }),
    svg("text", { x: x(node) + 7, y: y(node) + 16 }), " ",
    svg("text", { x: x(node) + 7, y: y(node) + 33, class: "sides" }));
  box.onclick = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || node.what === "function") return;
    event.preventDefault();
    if (!isFamily) open(node);
    else if (!node.edited) choose(node.name);
  };
  return box;
}

// The place that an arrow leads to from `place`; -1 if there is none.
function next({ nodes, edges }, place, [across, down]) {
  const from = nodes[place];
  const isThere = (node) => (across ? (node.level - from.level) * across > 0 : node.level === from.level && (node.row - from.row) * down > 0);
  const far = (node) => Math.abs(node.level - from.level) * nodes.length + Math.abs(node.row - from.row);
  const joined = across ? edges.filter((edge) => edge.includes(place)).flat() : [];
  const among = joined.some((each) => isThere(nodes[each])) ? joined : nodes.keys();
  return [...among].filter((each) => isThere(nodes[each])).sort((a, b) => far(nodes[a]) - far(nodes[b]))[0] ?? -1;
}

// Shows the graph; `addressOf` a node is where it leads to, and `open` shows it on this page. If only
// what the nodes are is new, it is not drawn anew.
export function drawEffects(graph, how) {
  const { nodes, edges, left } = graph;
  $("effectspart").hidden = !nodes.length;
  if (!nodes.length) return;
  text("effectsnote", "✎ edited in the branch; ⚠ changed by head, too; the others are computed. Values of one name pattern are one box. Arrow keys go from one to the next."
    + (left ? ` ${count(left)} more differ: those nearest to the edits are drawn.` : ""));
  const shape = JSON.stringify([edges, nodes.map(({ id, level, row, edited, both, count: size }) => [id, level, row, edited, both, size])]);
  if (shape !== drawn.shape) drawn = { shape, boxes: draw(graph, how) };
  drawn.boxes.forEach((box, place) => label(box, nodes[place]));
}

function draw(graph, how) {
  const { nodes, edges } = graph;
  const boxes = nodes.map((node) => nodeBox(node, how));
  const corner = (node) => ({ x: x(node), y: y(node) });
  const lines = edges.map(([from, to]) => edge(corner(nodes[from]), corner(nodes[to]), BOX));
  const most = (what) => Math.max(...nodes.map((node) => node[what]));
  const [width, height] = [most("level") * BOX.across + BOX.width + 2 * BOX.edge, most("row") * BOX.down + BOX.height + 2 * BOX.edge];

  const drawing = $("effectsdrawing");
  const isFocused = drawing.contains(document.activeElement);
  drawing.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...lines, ...boxes));
  const choose = (place) => {
    boxes.forEach((box, each) => box.setAttribute("tabindex", each === place ? "0" : "-1"));
    chosen = nodes[place].id;
  };
  choose(Math.max(0, nodes.findIndex(({ id }) => id === chosen)));
  if (isFocused) drawing.querySelector('[tabindex="0"]').focus({ preventScroll: true });
  boxes.forEach((box, place) => {
    box.onfocus = () => {
      choose(place);
      lines.forEach((each, at) => each.classList.toggle("near", edges[at].includes(place)));
    };
    box.onkeydown = (event) => {
      const to = MOVES[event.key] ? next(graph, place, MOVES[event.key]) : -1;
      if (to < 0) return;
      event.preventDefault();
      boxes[to].focus();
    };
  });
  return boxes;
}
