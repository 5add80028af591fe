// What the views of nodes and route groups share: how fresh a report is, and series that grow.
import {readdress} from "./address.js";
import {read} from "./api.js";
import {sparkline} from "./chart.js";
import {ago, count, el, moment, number, onPhone} from "./dom.js";

const POINTS_MAX = 720, RECENT_MAX = 90, ROWS = onPhone ? 20 : 50;
export const cores = (millicores) => millicores === null ? null : millicores / 1000;
export const percent = (share, digits = 1) => share === null || share === undefined ? "–" : `${number(share * 100, digits)} %`;

// With it a row of a list is another one each time that what it says of its age changes.
export const aged = (heard) => heard.stale_since && ago(Date.now() - new Date(heard.stale_since));

export function freshness(heard) {
  if (!heard.stale_since) return el("span", {class: "good"}, "live");
  return el("span", {class: "bad"}, "stale since ", moment(heard.stale_since), ` (${aged(heard)})`);
}

export function facts(pairs) {
  return pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value)));
}

// The points of `path`, read in parts: each refresh asks for what came since. Another query begins anew.
export class Series {
  constructor(path) {
    Object.assign(this, {path, points: [], agent: null, asked: ""});
  }

  async refresh(query) {
    const asked = JSON.stringify(query);
    if (asked !== this.asked) Object.assign(this, {asked, points: []});
    const last = this.points.at(-1), found = await read(this.path, {...query, after: last ? last.time_ms : 0});
    if (asked !== this.asked) return;
    if (this.agent !== null && found.agent !== this.agent) this.points = [];
    this.agent = found.agent;
    this.points = [...this.points, ...found.points].slice(-POINTS_MAX);
  }
}

// Stretches of points in which `name(point)` is the same word: [[from, to, word], …]; none for an empty word.
export function stretches(points, name) {
  const found = [];
  let open = null;
  for (const point of points) {
    const word = name(point);
    if (open) open[1] = point.time_ms;
    if (open && open[2] === word) continue;
    open = word ? [point.time_ms, point.time_ms, word] : null;
    if (open) found.push(open);
  }
  return found;
}

// `work`, one at a time. What asks for it meanwhile leads to one more, so what is seen is never older than that.
export function serial(work) {
  let running = null, again = false;
  return () => {
    again = Boolean(running);
    running = running || (async () => {
      try { do { again = false; await work(); } while (again); } finally { running = null; }
    })();
    return running;
  };
}

// The last moments of each row of a list, drawn. The first read has them (`recent`); then each report adds one.
export class Recent {
  constructor() { this.points = new Map(); }

  add(key, row, value) {
    const at = new Date(row.time).getTime(), points = this.points.get(key) || row.recent || [];
    if (!points.length || points.at(-1)[0] < at) points.push([at, value]);
    this.points.set(key, points.slice(-RECENT_MAX));
  }

  draw(key, what, {unit, scale = 1, ...options}) {
    const points = (this.points.get(key) || []).map(([at, value]) => [at, value === null ? null : value * scale]), known = points.map(([, value]) => value).filter((value) => value !== null);
    const words = known.length ? `${what} in the last ${ago(points.at(-1)[0] - points[0][0])}: ${number(Math.min(...known), 1)} to ${number(Math.max(...known), 1)} ${unit}` : "";
    return sparkline(words, points, options);
  }
}

// Rows of a list by key, of which reports replace single ones.
export class Rows {
  constructor(key, show) {
    Object.assign(this, {key, show, rows: new Map(), drawing: 0});
  }

  replace(rows) {
    this.rows = new Map(rows.map((row) => [this.key(row), row]));
    this.draw();
  }

  draw() { this.show([...this.rows.values()]); }

  // False where there is no such row yet.
  put(row) {
    const key = this.key(row), old = this.rows.get(key);
    if (!old) return false;
    this.rows.set(key, {...old, ...row});
    this.drawing = this.drawing || requestAnimationFrame(() => { this.drawing = 0; this.draw(); });
    return true;
  }
}

// The first rows of a list that begins with the worst, and a filter by name; the address has both. The control plane
// keeps the reports of some hundred nodes and groups, so all of them are here.
export class Shortlist {
  constructor(what, query, changed) {
    Object.assign(this, {what, text: query.text || "", all: query.show === "all", changed});
    this.box = el("input", {type: "search", id: "name-filter", placeholder: "a part of its name", autocomplete: "off", maxlength: 200, input: () => this.set({text: this.box.value.trim()})});
    this.box.value = this.text;
    this.button = el("button", {type: "button", click: () => this.set({all: !this.all})});
    this.said = el("p", {class: "soft", role: "status"});
    this.filter = el("div", {class: "run-filters"}, el("label", {for: "name-filter"}, "Filter"), this.box);
    this.pages = el("div", {class: "pages"}, this.button, this.said);
    this.filter.hidden = this.pages.hidden = true;
  }

  set(changes) {
    Object.assign(this, changes);
    readdress({text: this.text, show: this.all ? "all" : null});
    this.changed();
  }

  // What is shown of all rows. A list that fits needs neither filter nor button.
  pick(rows) {
    const part = this.text.toLowerCase(), found = rows.filter((row) => row.name.toLowerCase().includes(part)), shown = this.all ? found : found.slice(0, ROWS);
    this.filter.hidden = this.pages.hidden = rows.length <= ROWS && !part;
    this.button.hidden = found.length <= ROWS;
    this.button.textContent = this.all ? `The first ${ROWS}` : `All ${number(found.length)}`;
    const words = `${number(shown.length)} of ${count(rows.length, this.what)}`;
    if (this.said.textContent !== words) this.said.textContent = words;
    return shown;
  }
}
