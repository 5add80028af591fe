// Elements from values. Text is only ever set as text: what others named cannot become markup.

const SVG = new Set(["svg", "g", "rect", "line", "path", "circle", "text", "title", "polyline", "polygon", "marker", "defs"]);

// Characters that turn the direction of what follows: a name could be read as another one.
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;

// el("td", {class: "soft"}, "text", other): an element with attributes and children. Attributes that
// are functions are listeners; those that are false, null or undefined are left out.
export function el(name, attributes, ...children) {
  const made = SVG.has(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, String(value));
  }
  const shown = children.flat(9).filter((child) => child !== null && child !== undefined && child !== false);
  made.append(...shown.map((child) => typeof child === "string" ? child.replace(TURNS, "\ufffd") : child));
  return made;
}

const LONG = 24;  // letters of a name that may take a second line
export const nameClass = (kind, name) => name.length > LONG ? `${kind} long` : kind;

// A phone shows less of a list at once: its rows are taller, and its readers further from the end.
export const onPhone = matchMedia("(max-width: 40rem)").matches;
export const byId = (id) => document.getElementById(id);
export const number = (value, digits = 2) => value.toLocaleString(undefined, {maximumFractionDigits: digits});
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
// GPU-hours with their unit; a little is not nothing.
export const hours = (value) => value > 0 && value < 0.01 ? "under 0.01 h" : `${number(value)} h`;
export const link = (path, ...children) => el("a", {href: path}, ...children);
export const soft = (...children) => el("span", {class: "soft"}, ...children);

// A moment in the reader's own time; today without the date, other days with it.
export function stamp(text) {
  const at = new Date(text), today = at.toDateString() === new Date().toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString(undefined, {dateStyle: "medium", timeStyle: "short"});
}

export const moment = (text) => el("time", {datetime: new Date(text).toISOString(), title: new Date(text).toLocaleString()}, stamp(text));

// A function to wait for before asking again: a busy ledger has several events a second, and a reader's
// requests per second are limited. The first call does not wait.
export function pace(ms) {
  let last = -Infinity;
  return async () => {
    const wait = last + ms - performance.now();
    if (wait > 0) await new Promise((done) => setTimeout(done, wait));
    last = performance.now();
  };
}

export function ago(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${seconds} s`;
}

// A bar and the same in words; without a limit the words alone.
export function bar(label, taken, limit, unit) {
  const words = limit === null ? `${number(taken)} ${unit}, no limit` : `${number(taken)} of ${number(limit)} ${unit}`;
  if (limit === null) return [el("span", null, words)];
  const most = limit || 1;
  return [el("meter", {min: 0, max: most, high: most * 0.9, optimum: 0, value: Math.min(taken, most),
    "aria-label": `${label}: ${words}`}), el("span", null, words)];
}

// A part of a view: a heading and what follows. The heading can be linked to.
export function section(id, title, ...children) {
  return el("section", {"aria-labelledby": id}, el("h2", {id, tabindex: "-1"}, title), ...children);
}

// What a link or button is, whatever element draws it: where it leads or what it says, and in which row or group.
function identity(each) {
  const around = each.closest("tr[data-key], [role=group]");
  return JSON.stringify([each.tagName, each.getAttribute("href") ?? each.textContent, around && (around.dataset.key ?? around.getAttribute("aria-label"))]);
}

// `draw` changes what is in `root`. Who was on a link or button there is on the same one afterwards.
export function redraw(root, draw) {
  const focused = document.activeElement;
  if (focused === root || !root.contains(focused)) { draw(); return; }
  const twins = () => [...root.querySelectorAll("a, button")].filter((each) => identity(each) === own), own = identity(focused), place = twins().indexOf(focused);
  draw();
  if (document.activeElement === focused) return;
  const again = root.contains(focused) ? focused : twins()[place] || twins()[0];
  if (again) again.focus({preventScroll: true});
}

// Puts `wanted` into `parent` in this order. What is in its place is not touched: whatever is taken out and put back
// loses focus and selection.
function arrange(parent, wanted) {
  const kept = new Set(wanted);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  wanted.forEach((child, at) => { if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] || null); });
}

// A table whose rows are kept by key: what did not change is left alone, so that focus and selection
// stay where they are. `columns` are names; `cells(item)` gives one content per column. On a phone a row is a card, with
// the column's name before each content; a `brief` one has no names of columns. `numbers`: columns whose digits stand below each other. The roles keep it a table for a screen reader.
export class Table {
  constructor(label, columns, {key, cells, nothing, brief = false, numbers = []}) {
    Object.assign(this, {key, cells, nothing, columns, numbers});
    this.body = el("tbody", {role: "rowgroup"});
    this.root = el("div", {class: brief ? "scroll brief" : "scroll", role: "group", "aria-label": label, tabindex: "0"},
      el("table", {role: "table"}, el("thead", {role: "rowgroup"}, el("tr", {role: "row"}, ...columns.map((name) => el("th", {scope: "col", role: "columnheader", class: numbers.includes(name) && "number"}, name)))),
        this.body));
  }

  show(items) { redraw(this.body, () => this.draw(items)); }

  draw(items) {
    const old = new Map();
    for (const row of this.body.rows) old.set(row.dataset.key, row);
    const rows = items.map((item) => {
      const key = String(this.key(item)), said = JSON.stringify(item), row = old.get(key) || el("tr", {role: "row"});
      if (row.dataset.said !== said) {
        row.dataset.key = key;
        row.dataset.said = said;
        row.replaceChildren(...this.cells(item).map((content, at) =>
          el(at ? "td" : "th", {scope: at ? null : "row", role: at ? "cell" : "rowheader", "data-column": this.columns[at], class: this.numbers.includes(this.columns[at]) && "number"}, content)));
        row.cells[0].classList.toggle("long", row.cells[0].textContent.length > LONG);
      }
      return row;
    });
    if (!rows.length)
      rows.push(el("tr", {role: "row"}, el("td", {class: "empty", role: "cell", colspan: this.columns.length}, this.nothing)));
    arrange(this.body, rows);
  }
}
