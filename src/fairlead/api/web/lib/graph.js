// Who owes whom: owners on a circle, an arrow from each borrower to its lender, as thick as the debt. The
// table beside it says the same in words.
import {el, hours} from "./dom.js";
import {ownerMark} from "./owners.js";

const WIDTH = 460, RADIUS = 17, EDGES_MAX = 40, NAME_MAX = 20;
const shortened = (name) => name.length > NAME_MAX ? `${name.slice(0, NAME_MAX - 1)}…` : name;

export function debtGraph(rows) {
  const edges = [...rows].sort((a, b) => b.gpu_hours - a.gpu_hours).slice(0, EDGES_MAX);
  const names = [...new Set(edges.flatMap((row) => [row.borrower, row.lender]))].sort();
  const height = names.length === 2 ? 120 : 300;
  const most = Math.max(...edges.map((row) => row.gpu_hours), 1e-9);
  const at = new Map(names.map((name, index) => {
    const turn = index / names.length * 2 * Math.PI + (names.length === 2 ? Math.PI : -Math.PI / 2);
    return [name, [WIDTH / 2 + Math.cos(turn) * WIDTH * 0.32, height / 2 + Math.sin(turn) * height * 0.34]];
  }));
  const arrows = edges.map((row) => {
    const [x1, y1] = at.get(row.borrower), [x2, y2] = at.get(row.lender), length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const ux = (x2 - x1) / length, uy = (y2 - y1) / length, bend = 18;
    const mx = (x1 + x2) / 2 - uy * bend, my = (y1 + y2) / 2 + ux * bend;
    const head = Math.hypot(x2 - mx, y2 - my) || 1, hx = (x2 - mx) / head, hy = (y2 - my) / head;
    const sx = x1 + (mx - x1) / Math.hypot(mx - x1, my - y1) * RADIUS, sy = y1 + (my - y1) / Math.hypot(mx - x1, my - y1) * RADIUS;
    const ex = x2 - hx * (RADIUS + 9), ey = y2 - hy * (RADIUS + 9);
    const tip = [[x2 - hx * RADIUS, y2 - hy * RADIUS], [ex - hy * 5, ey + hx * 5], [ex + hy * 5, ey - hx * 5]].map((point) => point.map((each) => each.toFixed(1)).join(",")).join(" ");
    return el("g", {class: row.gpus ? "debt now" : "debt"},
      el("path", {d: `M${sx.toFixed(1)} ${sy.toFixed(1)}Q${mx.toFixed(1)} ${my.toFixed(1)} ${ex.toFixed(1)} ${ey.toFixed(1)}`, "stroke-width": (1 + row.gpu_hours / most * 3.5).toFixed(1)}),
      el("polygon", {points: tip}),
      el("text", {x: (mx - uy * 6).toFixed(1), y: (my + ux * 6 + 4).toFixed(1), "text-anchor": "middle"}, hours(row.gpu_hours)));
  });
  const dots = names.map((name) => {
    const [x, y] = at.get(name), mark = ownerMark(name), below = y > height / 2;
    return el("g", null, el("circle", {class: mark.colour, cx: x.toFixed(1), cy: y.toFixed(1), r: RADIUS}),
      el("text", {class: `inside ${mark.colour}`, x: x.toFixed(1), y: (y + 4).toFixed(1), "text-anchor": "middle"}, mark.letters),
      el("text", {class: "who", x: x.toFixed(1), y: (y + (below ? RADIUS + 14 : -RADIUS - 6)).toFixed(1), "text-anchor": "middle"}, shortened(name), el("title", null, name)));
  });
  return el("svg", {class: "debts", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "Who owes whom: an arrow from each borrower to its lender; the table has the numbers"}, arrows, dots);
}
