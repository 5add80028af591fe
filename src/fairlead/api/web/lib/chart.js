// Charts as SVG of our own: lines over time. The strict content policy allows no library that sets styles
// inline. Each chart has a name for screen readers, and its newest values in words.
import {el, number} from "./dom.js";

const WIDTH = 640, HEIGHT = 180, LEFT = 44, BOTTOM = 22, TOP = 12, COLOURS = 6;

const tick = (value) => number(value, value >= 100 ? 0 : value >= 10 ? 1 : 2);

// A path through points [[ms, value or null], …]; a null, or a silence longer than `gap`, breaks it.
function path(points, x, y, gap) {
  let pen = "M", before = null;
  return points.map(([time, value]) => {
    if (value === null) { pen = "M"; return ""; }
    if (gap && before !== null && time - before > gap) pen = "M";
    const step = `${pen}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
    before = time;
    return step;
  }).join("");
}

// Times of today; of other days with their date.
function clock(time) {
  const at = new Date(time), today = at.toDateString() === new Date().toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString(undefined, {dateStyle: "medium", timeStyle: "short"});
}

// The values of all lines at a moment, in words, and the upright line there; without a moment the newest values.
function readout(lines, {x, at, unit, digits, inside}) {
  const cursor = el("line", {class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM}), when = el("li", {class: "soft"}), values = lines.map(() => document.createTextNode(""));
  const keys = el("ul", {class: "keys"}, lines.map((line, index) => el("li", null, el("span", {class: `key key-${index % COLOURS}`, "aria-hidden": "true"}), values[index])), when);
  function say(moment) {
    const there = moment !== null && inside(moment);
    cursor.setAttribute("visibility", there ? "visible" : "hidden");
    if (there) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(moment).toFixed(1));
    when.textContent = there ? `at ${clock(moment)}` : "";
    lines.forEach(({name, points}, index) => {
      const last = points.findLast(([time, value]) => value !== null && (moment === null || time <= moment));
      values[index].data = `${name}: ${last ? number(last[1], digits) : "–"} ${unit}`.trim();
    });
  }
  say(at);
  return {cursor, keys, say};
}

// The moment under the pointer is read out; `pick(ms)` is called where it is pressed or dragged to.
function pointed(svg, {from, to, at, say, pick}) {
  const moment = (event) => {
    const box = svg.getBoundingClientRect(), part = ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT);
    return from + Math.max(0, Math.min(1, part)) * (to - from);
  };
  svg.addEventListener("pointermove", (event) => { say(moment(event)); if (pick && event.buttons & 1) pick(moment(event)); });
  svg.addEventListener("pointerleave", () => say(at));
  if (!pick) return;
  svg.classList.add("pick");
  svg.addEventListener("pointerdown", (event) => pick(moment(event)));
}

// lines: [{name, points: [[ms, value or null], …], dashed?}]. Colours come from the classes line-0, line-1, …
// `bands`: [[from, to, class, name], …] behind them. `at`: a moment that is marked. `gap`: a longer silence is
// no line. `digits` of the numbers in words. `pick(ms)`: a moment was chosen.
export function lineChart(label, lines, {unit = "", high = null, bands = [], at = null, gap = null, digits = 2, pick = null} = {}) {
  const all = lines.flatMap((line) => line.points).filter(([, value]) => value !== null);
  if (!all.length) return el("p", {class: "empty"}, `${label}: nothing measured yet`);
  let from = Infinity, to = -Infinity, top = high || 0;
  for (const [time, value] of all) { from = Math.min(from, time); to = Math.max(to, time); top = Math.max(top, value); }
  to = Math.max(to, from + 1);
  top = top || 1;
  const x = (time) => LEFT + (time - from) / (to - from) * (WIDTH - LEFT), y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const behind = bands.filter(([start, end]) => end > from && start < to).map(([start, end, style, name]) => el("rect", {class: `band ${style}`,
    x: x(Math.max(start, from)), width: Math.max(1, x(Math.min(end, to)) - x(Math.max(start, from))), y: TOP, height: HEIGHT - TOP - BOTTOM}, el("title", null, name)));
  const paths = lines.map((line, index) => el("path", {class: `line line-${index % COLOURS}${line.dashed ? " dashed" : ""}`, d: path(line.points, x, y, gap)},
    el("title", null, line.name)));
  const marks = [0, 0.5, 1].map((part) => [el("line", {class: "grid", x1: LEFT, x2: WIDTH, y1: y(top * part), y2: y(top * part)}),
    el("text", {class: "mark", x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end"}, tick(top * part))]);
  const ends = [[from, "start"], [to, "end"]].map(([time, anchor]) => el("text", {class: "mark", x: x(time), y: HEIGHT - 4, "text-anchor": anchor}, clock(time)));
  const {cursor, keys, say} = readout(lines, {x, at, unit, digits, inside: (moment) => moment >= from && moment <= to});
  const svg = el("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label}, behind, marks, paths, cursor, ends);
  pointed(svg, {from, to, at, say, pick});
  return el("figure", {class: "chart"}, el("figcaption", null, label), svg, keys);
}
