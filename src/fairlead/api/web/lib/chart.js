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

// lines: [{name, points: [[ms, value or null], …], dashed?}]. Colours come from the classes line-0, line-1, …
// `bands`: [[from, to, class, name], …] behind them. `at`: a moment that is marked. `gap`: a longer silence is
// no line. `digits` of the numbers in words.
export function lineChart(label, lines, {unit = "", high = null, bands = [], at = null, gap = null, digits = 2} = {}) {
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
  const ends = [[from, "start"], [to, "end"]].map(([time, anchor]) => el("text", {class: "mark", x: x(time), y: HEIGHT - 4, "text-anchor": anchor},
    new Date(time).toLocaleTimeString()));
  const cursor = at !== null && at >= from && at <= to ? el("line", {class: "cursor", x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM}) : null;
  const shown = (points) => at === null ? points.findLast(([, value]) => value !== null) : points.findLast(([time, value]) => time <= at && value !== null);
  const values = lines.map((line, index) => {
    const last = shown(line.points);
    return el("li", null, el("span", {class: `key key-${index % COLOURS}`, "aria-hidden": "true"}), `${line.name}: ${last ? number(last[1], digits) : "–"} ${unit}`.trim());
  });
  return el("figure", {class: "chart"}, el("figcaption", null, label),
    el("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label}, behind, marks, paths, cursor, ends), el("ul", {class: "keys"}, values));
}
