// The hours that an envelope has left, from the start of its period to the end; without a limit, the hours used.
import {el, hours, stamp} from "./dom.js";

const WIDTH = 220, HEIGHT = 58, PAD = 3;
const time = (text) => new Date(text).getTime();

export function burnDown(row) {
  const from = time(row.period_start), now = time(row.now), to = row.period_end ? time(row.period_end) : now;
  const limit = row.limit_gpu_hours, points = row.points.map((point) => [time(point.time), point.used_gpu_hours]);
  const top = limit ?? Math.max(1e-9, ...points.map(([, used]) => used));
  const x = (at) => PAD + (at - from) / Math.max(1, to - from) * (WIDTH - 2 * PAD), y = (value) => PAD + (1 - Math.max(0, value) / (top || 1)) * (HEIGHT - 2 * PAD);
  const shown = points.map(([at, used]) => [at, limit === null ? used : limit - used]);
  const path = (steps) => steps.map(([at, value], each) => `${each ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const left = limit === null ? null : Math.max(0, limit - row.used_gpu_hours), drawn = [];
  if (limit !== null && row.period_end) drawn.push(el("path", {class: "ideal", d: path([[from, limit], [to, 0]])}));
  if (shown.length) drawn.push(el("path", {class: "area", d: `${path(shown)}L${x(shown.at(-1)[0]).toFixed(1)} ${HEIGHT - PAD}L${x(shown[0][0]).toFixed(1)} ${HEIGHT - PAD}Z`}),
    el("path", {class: "line line-0", d: path(shown)}));
  if (limit !== null && row.gpus && to > now) {
    const out = row.runs_out ? time(row.runs_out) : to, rest = row.runs_out ? 0 : left - row.gpus * (to - now) / 3600000;
    drawn.push(el("path", {class: `ahead${row.runs_out ? " short" : ""}`, d: path([[now, left], [out, rest]])}));
  }
  drawn.push(el("line", {class: "grid", x1: PAD, x2: WIDTH - PAD, y1: HEIGHT - PAD, y2: HEIGHT - PAD}));
  if (to > now) drawn.push(el("line", {class: "now", x1: x(now), x2: x(now), y1: 0, y2: HEIGHT}));
  const words = limit === null ? `${hours(row.used_gpu_hours)} in 30 days`
    : row.runs_out ? `used up ${stamp(row.runs_out)} at this rate` : row.period_end ? `lasts until ${stamp(row.period_end)}` : `${hours(left)} left`;
  return el("figure", {class: "burn"},
    el("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${row.budget}/${row.envelope}: ${words}`}, drawn),
    el("figcaption", {class: row.runs_out ? "warn" : "soft"}, words));
}

