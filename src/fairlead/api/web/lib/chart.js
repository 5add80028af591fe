// Charts as SVG of our own: lines over time. The strict content policy allows no library that sets styles
// inline. Each chart has a name for screen readers, and its newest values in words.
import {el, number, onPhone, stamp} from "./dom.js";

// A phone draws fewer units on its width, so that the marks can be read.
const WIDTH = onPhone ? 360 : 640, HEIGHT = 180, LEFT = 44, BOTTOM = 22, TOP = 18, COLOURS = 6;
const USUAL = 0.98, FAR = 3, ENOUGH = 50, MARKS_APART = 56;
const SMALL_WIDTH = 120, SMALL_HEIGHT = 28;

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

// How far the axis goes. A few values far above all others would flatten these: the axis ends below them.
function reach(values, high) {
  const sorted = [...values].sort((a, b) => a - b), most = Math.max(sorted.at(-1), high), usual = sorted[Math.floor((sorted.length - 1) * USUAL)];
  const flat = sorted.length >= ENOUGH && usual > 0 && most > FAR * Math.max(usual, high);
  return (flat ? Math.max(1.25 * usual, high) : most) || 1;
}

// Round values for the marks of an axis, from 0 on; the last is the top.
function marksOf(most) {
  const rough = most / 4, size = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 2.5, 5, 10].find((each) => each * size >= rough * 0.999) * size;
  return Array.from({length: Math.ceil(most / step * 0.999) + 1}, (_, index) => index * step);
}

// What goes beyond the top, said where it does: the highest of neighbours.
function peaks(lines, top, x) {
  const found = [];
  for (const [time, value] of lines.flatMap((line) => line.points).filter(([, value]) => value > top).sort((a, b) => b[1] - a[1]))
    if (found.every(([other]) => Math.abs(x(other) - x(time)) >= MARKS_APART)) found.push([time, value]);
  return found.map(([time, value]) => el("text", {class: "mark peak", x: Math.max(LEFT + 24, Math.min(WIDTH - 24, x(time))).toFixed(1), y: TOP - 5, "text-anchor": "middle"}, `▲ ${tick(value)}`));
}

// The values of all lines at a moment, in words, and the upright line there; without a moment the newest values.
function readout(lines, {x, at, unit, digits, inside}) {
  const cursor = el("line", {class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM}), when = el("li", {class: "soft"}), values = lines.map(() => document.createTextNode(""));
  const keys = el("ul", {class: "keys"}, lines.map((line, index) => el("li", null, el("span", {class: `key key-${index % COLOURS}`, "aria-hidden": "true"}), values[index])), when);
  function say(moment) {
    const there = moment !== null && inside(moment);
    cursor.setAttribute("visibility", there ? "visible" : "hidden");
    if (there) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(moment).toFixed(1));
    when.textContent = there ? `at ${stamp(moment)}` : "";
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
  let from = Infinity, to = -Infinity;
  for (const [time] of all) { from = Math.min(from, time); to = Math.max(to, time); }
  to = Math.max(to, from + 1);
  const grid = marksOf(reach(all.map(([, value]) => value), high || 0)), top = grid.at(-1);
  const x = (time) => LEFT + (time - from) / (to - from) * (WIDTH - LEFT), y = (value) => TOP + (1 - Math.min(1, value / top)) * (HEIGHT - TOP - BOTTOM);
  const behind = bands.filter(([start, end]) => end > from && start < to).map(([start, end, style, name]) => el("rect", {class: `band ${style}`,
    x: x(Math.max(start, from)), width: Math.max(1, x(Math.min(end, to)) - x(Math.max(start, from))), y: TOP, height: HEIGHT - TOP - BOTTOM}, el("title", null, name)));
  const paths = lines.map((line, index) => el("path", {class: `line line-${index % COLOURS}${line.dashed ? " dashed" : ""}`, d: path(line.points, x, y, gap)},
    el("title", null, line.name)));
  const marks = grid.map((value) => [el("line", {class: "grid", x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value)}),
    el("text", {class: "mark", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end"}, tick(value))]);
  const beyond = peaks(lines, top, x);
  const ends = [[from, "start"], [to, "end"]].map(([time, anchor]) => el("text", {class: "mark", x: x(time), y: HEIGHT - 4, "text-anchor": anchor}, stamp(time)));
  const {cursor, keys, say} = readout(lines, {x, at, unit, digits, inside: (moment) => moment >= from && moment <= to});
  const svg = el("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": [label, ...beyond.map((mark) => mark.textContent.replace("▲", "peak"))].join(", ")}, behind, marks, paths, beyond, cursor, ends);
  pointed(svg, {from, to, at, say, pick});
  return el("figure", {class: "chart"}, el("figcaption", null, label), svg, keys);
}

// A line in a row of a list: `points` as above, up to `high` or their most. `mark`: a level, dashed. `words` says the same.
export function sparkline(words, points, {high = 0, mark = null} = {}) {
  const known = points.filter(([, value]) => value !== null);
  if (known.length < 2) return null;
  const from = known[0][0], to = Math.max(known.at(-1)[0], from + 1), top = Math.max(reach(known.map(([, value]) => value), high), mark || 0);
  const x = (time) => (time - from) / (to - from) * SMALL_WIDTH, y = (value) => 2 + (1 - Math.min(1, value / top)) * (SMALL_HEIGHT - 4);
  return el("svg", {class: "spark", viewBox: `0 0 ${SMALL_WIDTH} ${SMALL_HEIGHT}`, role: "img", "aria-label": words}, el("title", null, words),
    mark !== null && el("line", {class: "spark-mark", x1: 0, x2: SMALL_WIDTH, y1: y(mark), y2: y(mark)}), el("path", {class: "line line-0", d: path(points, x, y, null)}));
}
